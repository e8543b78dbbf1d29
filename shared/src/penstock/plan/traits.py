"""What an operation tells of itself: its place in a job graph, its state, its event time, and what arrival decides.

Every trait is a fact about results, not a hint: passes and engines rely on it. None has a default, so that an
operation has to define each. Operations of one kind have most traits in common; `structure`, `per_row` and `keyed`
are these kinds, and ask for what differs within them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from penstock.core.times import format_duration
from penstock.functions.windows.definitions import Window

Mode = Literal["append", "upsert", "retract"]
"""What rows of a stream are: facts; each the newest one of its key (and window, or rank); or changes, of which each adds
a row or, where `RETRACTED` is true, retracts one that was added, the same in all columns."""

Role = Literal["source", "operator", "structure", "sink"]
"""`structure` says how rows get from operator to operator and has no operator of its own."""

StateAccess = Literal["none", "pending", "by_key", "scanned"]
"""`pending`: rows that wait for an answer from outside. `by_key`: state that is read and written only for the keys of the
rows that arrive, and by timers. `scanned`: state that is also looked through as a whole, as windows are when event time
advances."""

RowTimes = Literal["kept", "moved", "new"]
"""Whether output rows have the event time of the input row that they come from, or one of their own; `moved`: one
of their own for which the watermarks of the input hold, if they are held back by a constant."""

Watermarks = Literal["forwarded", "held_back", "own"]
"""`held_back`: forwarded when the rows in front of it are; `own`: generated here, so that those of the input end here."""


@dataclass(frozen=True, slots=True)
class LateBehindWatermark:
    """A row is late if its event time is not after the watermark."""


@dataclass(frozen=True, slots=True)
class LateForWindows:
    """A row is late if all its windows are over by the watermark and the allowed lateness."""

    window: Window
    allowed_us: int


@dataclass(frozen=True, slots=True)
class LateForItsWindow:
    """A row names its window; it is late if that is over by the watermark."""


LateRule = LateBehindWatermark | LateForWindows | LateForItsWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Facts about one operation at its place in a plan."""

    role: Role
    state: StateAccess
    kept: str
    """What is kept as state and until when, as a clause for plans; empty if none is, or the user's function says it."""
    ttl_us: int | None
    """How long state is kept after it was last written."""
    row_times: RowTimes
    watermarks: Watermarks
    watermark_lag_us: int | None
    """How far event time stays behind the newest row that is handed on; None: as far as that of the inputs."""
    in_order: bool | None
    """Whether rows leave in order of event time, split by split; None: if they arrive so."""
    reads_watermarks: bool
    """Whether a function sees the watermark beside each row."""
    time_dependent: bool
    """Whether its rows may depend on how far event time has advanced."""
    reach_us: int
    """How far the bounds of its windows may be from a row in them."""
    late: LateRule | None
    """When a row is too late for it; None if no row is."""
    late_tag: str | None
    """The side output of late rows, if it has one."""
    combinable: bool
    """Whether rows may be aggregated in part before they reach it, in any order."""
    arrival: str
    """What of its rows the order of arrival decides, as the end of a sentence; empty if nothing."""
    undetermined: str
    """What of its rows does not follow from its state, its batches in their order and their time, as a clause: whoever
    computes them again may get others. Empty if nothing; of batches their rows count, not the order within one, but that
    of the rows of a key."""
    broadcast_inputs: frozenset[int]
    """The inputs of which every subtask gets every row."""
    not_in_batch: str
    """Why a batch engine cannot run it and what to write instead, as a clause behind its id; empty if it can."""

    @property
    def keeps_state(self) -> bool:
        """Whether what becomes of a row depends on other rows."""
        return self.state != "none"

    @property
    def knows_time(self) -> bool:
        """Whether what it keeps or does depends on how far event time has advanced, which is kept once per vertex."""
        return self.reads_watermarks or self.state in ("by_key", "scanned")


def per_row(*, undetermined: str, arrival: str = "", pending: bool = False) -> Traits:
    """Operations that look at one row at a time, whatever event time is; with `pending` they wait for an answer."""
    return Traits(
        role="operator", state="pending" if pending else "none", kept="rows until they are answered" if pending else "",
        ttl_us=None, row_times="kept",
        watermarks="held_back" if pending else "forwarded", watermark_lag_us=None, in_order=None,
        reads_watermarks=False, time_dependent=False, reach_us=0, late=None, late_tag=None, combinable=False,
        arrival=arrival, undetermined=undetermined, broadcast_inputs=frozenset(), not_in_batch="",
    )  # fmt: skip


def structure(*, time_dependent: bool = False) -> Traits:
    """Operations that only say which rows go where."""
    return replace(per_row(undetermined=""), role="structure", time_dependent=time_dependent)


def keyed(
    *,
    undetermined: str,
    arrival: str,
    state: Literal["by_key", "scanned"],
    kept: str,
    ttl_us: int | None = None,
    row_times: RowTimes = "new",
    watermarks: Watermarks = "forwarded",
    watermark_lag_us: int | None = None,
    time_dependent: bool = True,
    reach_us: int = 0,
    late: LateRule | None = None,
    late_tag: str | None = None,
    combinable: bool = False,
) -> Traits:
    """Operations with state by key whose results are rows of their own."""
    return Traits(
        role="operator", state=state, kept=kept, ttl_us=ttl_us, row_times=row_times, watermarks=watermarks,
        watermark_lag_us=watermark_lag_us, in_order=None, reads_watermarks=False, time_dependent=time_dependent,
        reach_us=reach_us, late=late, late_tag=late_tag, combinable=combinable, arrival=arrival,
        undetermined=undetermined, broadcast_inputs=frozenset(), not_in_batch="",
    )  # fmt: skip


def kept_for(what: str, ttl_us: int | None, *, of_changes: bool = False) -> str:
    """What is kept of a key until its time to live is over, if it has one; of changes no longer than rows are current."""
    if ttl_us is None:
        return f"{what}, as long as there are such rows" if of_changes else f"{what}, for ever"
    return f"{what}, for {format_duration(ttl_us)} after its last change"


def with_lateness(kept: str, allowed_us: int) -> str:
    """What is kept of windows, which stays for late rows, if any are allowed."""
    return f"{kept} and {format_duration(allowed_us)} behind that, for late rows" if allowed_us else kept
