"""Task managers that can be had more or fewer of: a workload of somebody else's that keeps a number of them running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ExternalError


class ScaleChangedError(ExternalError):
    """Somebody else has changed it meanwhile: read it again."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many task managers are asked for."""

    task_managers: int
    version: str
    """Another one after every change."""


class TaskManagerScale(Protocol):
    """Keeps task managers 0, 1, ... up to one less than is asked for; of too many, the highest numbers end first.

    A number that was written is read from then on; the task managers themselves come and go later.
    """

    def number_of(self, host: str) -> int | None:
        """The number of the task manager on that host; None if it is none of these."""
        ...

    async def read(self) -> Scale:
        """How many are asked for now.

        Raises:
            ExternalError: no answer, or a refusal; says what to do.
        """
        ...

    async def write(self, task_managers: int, version: str) -> Scale:
        """Ask for another number.

        Raises:
            ScaleChangedError: `version` is not the newest; nothing was changed.
            ExternalError: no answer, or a refusal; says what to do.
        """
        ...
