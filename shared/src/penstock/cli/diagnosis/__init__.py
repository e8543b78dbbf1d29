"""Why a job is slow, stuck or lagging: from the documents that a dispatcher serves to findings in words.

`diagnose` is a pure function, and so are the checks that it asks one after the other. What is seen of a job stands in
`facts`; `control` knows of jobs that do not run, `progress` of rows, `delivery` of event time, sinks and checkpoints.
"""

from penstock.cli.diagnosis.facts import JobFacts, JobFinding
from penstock.cli.diagnosis.findings import diagnose

__all__ = ["JobFacts", "JobFinding", "diagnose"]
