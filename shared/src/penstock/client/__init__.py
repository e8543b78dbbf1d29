"""The cluster from outside: the REST interface's documents and a client for it.

>>> async with ClusterClient("http://127.0.0.1:8081") as cluster:
...     for job in (await cluster.jobs()).jobs:
...         print(job.name, job.state)
"""

from penstock.client.client import ClusterClient
from penstock.client.errors import NoAnswerError, RefusedError

__all__ = ["ClusterClient", "NoAnswerError", "RefusedError"]
