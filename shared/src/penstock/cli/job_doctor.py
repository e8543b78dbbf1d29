"""`penstock doctor JOB`: why a job is slow, stuck or lagging, in words."""

from __future__ import annotations

import asyncio
import textwrap
import time

from penstock.cli.cluster import ClusterOptions, print_json, with_cluster
from penstock.cli.diagnosis import JobFacts, JobFinding, diagnose
from penstock.client import ClusterClient
from penstock.core.names import shown
from penstock.errors import UsageError

_INDENT = " " * 8


def examine_job(options: ClusterOptions, job: str) -> int:
    """Look at the job of that id, beginning of an id, or name, and print what is found; 1 if something is wrong."""
    facts = with_cluster(options, lambda cluster: look(cluster, job))
    found = diagnose(facts)
    well = all(finding.ok for finding in found)
    summary = facts.detail.summary
    if options.json:
        print_json({"ok": well, "job": summary.job, "name": summary.name, "state": summary.state, "checks": found})
    else:
        print(f"{shown(summary.name)} ({summary.job}): {summary.state.lower()}")
        print("\n".join(line for finding in found for line in finding_lines(finding)))
    return 0 if well else 1


async def look(cluster: ClusterClient, job: str) -> JobFacts:
    """What the cluster shows of a job.

    Raises:
        UsageError: it is a run on Spark.
    """
    found = await cluster.find(job)
    if found.kind == "run":
        raise UsageError(f"{job} is a run on Spark, which penstock status {job} and penstock logs {job} tell about")
    documents = await asyncio.gather(cluster.job(found.id), cluster.failures(found.id), cluster.overview())
    return JobFacts(*documents, now_us=time.time_ns() // 1_000)


def finding_lines(finding: JobFinding) -> list[str]:
    """What is seen, what it means, what to do, where more is said."""
    lines = [f"{'ok' if finding.ok else 'WRONG':<{len(_INDENT)}}{finding.check}: {finding.seen}"]
    lines += [f"{_INDENT}{finding.meaning}"] if finding.meaning else []
    if finding.frames:
        lines.append(f"{_INDENT}Traceback (your code, most recent call last):")
        lines += textwrap.indent(finding.frames.rstrip(), _INDENT).splitlines()
    lines += [f"{_INDENT}Do: {finding.advice}"] if finding.advice else []
    lines += [f"{_INDENT}See {finding.doc}"] if finding.doc else []
    return lines
