"""Clusters from outside: for programs and notebooks, for coroutines, and the documents of the REST interface.

>>> Cluster("production.toml").job("hot-auctions").savepoint()

>>> async with ClusterClient("http://127.0.0.1:8081") as cluster:
...     for job in (await cluster.jobs()).jobs:
...         print(job.name, job.state)
"""

from penstock.core.extras import naming_extras

with naming_extras():
    from penstock.client.client import ClusterClient
    from penstock.client.cluster import Cluster, Job
    from penstock.client.errors import NoAnswerError, RefusedError

__all__ = ["Cluster", "ClusterClient", "Job", "NoAnswerError", "RefusedError"]
