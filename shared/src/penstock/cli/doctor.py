"""`penstock doctor`: one line for each check of a cluster's Kafka, Redis and store; of a job, see `job_doctor`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict, dataclass

from rich.console import Console

from penstock.cli.cluster import ClusterOptions
from penstock.cli.job_doctor import examine_job
from penstock.errors import UsageError
from penstock.platform.buckets import ensure_bucket
from penstock.platform.doctor import examine
from penstock.platform.doctor_checks import Finding
from penstock.platform.doctor_kafka import settle_transactions
from penstock.settings import load_settings


@dataclass(frozen=True)
class Doctor(ClusterOptions):
    """`penstock doctor`."""

    job: str | None
    create_bucket: bool
    settle_transactions: bool


def doctor_command(command: Doctor) -> int:
    """Check and print; 1 if something is wrong."""
    if command.job is None:
        return _examine_parts(command)
    if command.create_bucket or command.settle_transactions:
        raise UsageError("--create-bucket and --settle-transactions are for the cluster's parts: leave the job out")
    return examine_job(command, command.job)


def _examine_parts(command: Doctor) -> int:
    settings = load_settings(command.cluster)
    if command.create_bucket:
        ensure_bucket(settings.store)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it would log is in the findings
    if command.settle_transactions:
        for line in asyncio.run(settle_transactions(settings)):
            print(line, file=sys.stderr)
    with Console(stderr=True).status("asking Kafka, Redis and the store"):
        findings = asyncio.run(examine(settings))
    failed = [finding for finding in findings if not finding.ok]
    if command.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        print("\n".join(_lines(findings)))
    return 1 if failed else 0


def _lines(findings: list[Finding]) -> list[str]:
    width = max(len(finding.check) for finding in findings)
    lines: list[str] = []
    for finding in findings:
        state = "ok    " if finding.ok else "FAILED"
        what = f"{finding.detail}; {finding.advice}" if finding.advice else finding.detail
        lines.append(f"{finding.part:<6} {finding.check:<{width}}  {state}  {what}")
    return lines
