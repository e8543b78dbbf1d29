"""`penstock logs`: what happened to a job or a run, and what its workers logged; once, or until it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from penstock.cli.cluster import ClusterOptions, OneJob, moment, print_json, with_cluster
from penstock.client import ClusterClient, NoAnswerError
from penstock.client.documents import ENDED, Failures, JobLog
from penstock.coordination.worker_logs import WorkerLogList
from penstock.errors import UsageError

POLL_S: Final = 1.0
INDENT: Final = " " * 27
"""To where the text of a record stands."""


@dataclass(frozen=True)
class ShowLogs(OneJob):
    """`penstock logs`."""

    follow: bool
    workers: bool
    lines: int


def logs_command(command: ShowLogs) -> int:
    """What went wrong in a job or a run, and what the cluster decided about it; or what its workers logged."""
    if command.json and command.follow:
        raise UsageError("--follow prints lines until the job ends; leave --json out")
    found = with_cluster(command, lambda cluster: cluster.find(command.job))
    if found.kind == "run":
        if command.follow or command.workers:
            raise UsageError(f"{found.id} is a run on Spark: --follow and --workers are for jobs")
        return _run_logs(command, found.id)
    shown: _History | _Workers = _Workers(command.lines) if command.workers else _History()
    if command.json:
        print_json(with_cluster(command, lambda cluster: shown.document(cluster, found.id)))
        return 0
    try:
        with_cluster(command, lambda cluster: _show(cluster, found.id, shown, follow=command.follow))
    except KeyboardInterrupt:  # the way to end --follow
        return 130
    return 0


def _run_logs(options: ClusterOptions, run: str) -> int:
    """What happened to a run, and what its process printed last."""
    log = with_cluster(options, lambda cluster: cluster.run_log(run))
    if options.json:
        print_json(log)
        return 0
    for record in log.records:
        print(record_text(record))
    if log.output:
        print("\nwhat its process printed last:")
        print(log.output.rstrip("\n"))
    return 0


async def _show(cluster: ClusterClient, job: str, shown: _History | _Workers, *, follow: bool) -> None:
    silent = False
    while True:
        try:
            ended = follow and (await cluster.job(job)).summary.state in ENDED
            for line in await shown.lines(cluster, job):
                print(line, flush=True)
            silent = False
            if ended or not follow:
                return
        except NoAnswerError as error:
            if not follow:
                raise
            if not silent:
                print(f"waiting for a dispatcher to answer ({error})", flush=True)
            silent = True
        await asyncio.sleep(POLL_S)


@dataclass
class _History:
    """The job's log, and why attempts failed; every line once."""

    _seq: int = -1
    _failures: tuple[str, ...] = ()

    async def document(self, cluster: ClusterClient, job: str) -> dict[str, Any]:
        """All of it, for machines."""
        log, failures = await self._read(cluster, job)
        return {"job": log.job, "records": log.records, "failures": failures.failures, "reason": failures.reason}

    async def lines(self, cluster: ClusterClient, job: str) -> list[str]:
        """What was not said yet."""
        log, failures = await self._read(cluster, job)
        lines = [record_text(record) for record in log.records if record["seq"] > self._seq]
        self._seq = max((record["seq"] for record in log.records), default=self._seq)
        logged = {record["reason"] for record in log.records if record["type"] == "AttemptFailed"}
        news = [failure for failure in added(self._failures, failures.failures) if failure not in logged]
        if news:
            lines += ["", "what its leader says, newest last:", *(f"  {failure}" for failure in news)]
        self._failures = failures.failures
        return lines

    async def _read(self, cluster: ClusterClient, job: str) -> tuple[JobLog, Failures]:
        return await cluster.log(job), await cluster.failures(job)


@dataclass
class _Workers:
    """What the workers of the job have logged; every line once."""

    count: int
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _missing: tuple[str, ...] = ()

    async def document(self, cluster: ClusterClient, job: str) -> WorkerLogList:
        """All of it, for machines."""
        return await cluster.worker_logs(job, self.count)

    async def lines(self, cluster: ClusterClient, job: str) -> list[str]:
        """What was not said yet."""
        found = await cluster.worker_logs(job, self.count)
        lines = [f"not known: {missing}" for missing in found.missing if missing not in self._missing]
        self._missing = found.missing
        for log in found.workers:
            news = added(self._known.get(log.worker, ()), log.lines)
            lines += [f"{log.worker}{' (ended)' if log.ended else ''}  {line}" for line in news]
            self._known[log.worker] = log.lines
        return lines


def added(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """What came to the end of a list that forgets its beginning."""
    for kept in range(min(len(before), len(now)), 0, -1):
        if before[-kept:] == now[:kept]:
            return now[kept:]
    return now


def record_text(record: dict[str, Any]) -> str:
    """A record of a log as a line: its number, when it was written where that is known, and what it says."""
    at_us = record.get("at_us") or record.get("submitted_us")
    return f"{record['seq']:>4}  {moment(at_us):<20} {record_line(record)}"


def record_line(record: dict[str, Any]) -> str:
    """A record of the log of a job or a run in words."""
    restored = record.get("restored_from") or record.get("restore")
    match record["type"]:
        case "Submit" | "Submitted":
            start = f", starts from {restored['manifest']}" if restored else ""
            return f"submitted: {record['name']}{start}"
        case "Leader":
            return f"leader of epoch {record['epoch']} took over"
        case "Begin":
            start = f"from checkpoint {restored['checkpoint']}" if restored else "from the beginning"
            only = ", to publish what is complete" if record.get("publishes_only") else ""
            return f"attempt {record['attempt_number']} began {start}, parallelism {record['parallelism']}{only}"
        case "AttemptFailed":
            return failed_attempt(record)
        case "Complete":
            ending = f" ({record['ending']})" if record.get("ending") else ""
            return f"checkpoint {record['checkpoint']} complete{ending}"
        case "Savepoint":
            return f"savepoint {record['checkpoint']}: {record['manifest']}"
        case "AttemptBegan":
            return f"attempt {record['attempt']} began on {record['host']}"
        case "AttemptLost":
            return f"attempt {record['attempt']} is lost: {record['reason']}"
        case "CancelAsked":
            return "a client asked for its end"
        case "Terminated" | "RunEnded":
            return f"ended: {record['state'].lower()}" + (f", {record['reason']}" if record.get("reason") else "")
        case other:
            return f"{other}: {msgspec.json.encode(record).decode()}"


def failed_attempt(record: dict[str, Any]) -> str:
    """Why an attempt failed, and where: the worker, and below it the frames of the user's code."""
    worker = f" (worker {record['worker']})" if record.get("worker") else ""
    frames = "".join(f"\n{INDENT}{line}" for line in record.get("frames", "").splitlines())
    return f"attempt {record['attempt_number']} failed: {record['reason']}{worker}{frames}"
