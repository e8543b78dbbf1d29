"""Who looks on while a leader masters a job: told what its master hears and orders, in order, and asked nothing."""

from __future__ import annotations

from typing import Protocol

from penstock.protocol.jobevents import JobCommand, JobEvent
from penstock.protocol.jobmaster import JobMaster


class JobObserver(Protocol):
    """Looks at one job under one leader. It must neither wait nor raise: the job's next step comes behind it."""

    def event(self, event: JobEvent, master: JobMaster, now_us: int) -> None:
        """The master was told this, and stands now as it does."""
        ...

    def command(self, command: JobCommand, now_us: int) -> None:
        """The master orders this; it is not carried out yet."""
        ...

    def closed(self, now_us: int) -> None:
        """This leader has done with the job: it has ended, or another one leads."""
        ...
