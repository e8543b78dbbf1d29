"""Windows under a trigger whose aggregates are held as partials, not as rows: Flink's AggregatingState.

The process decides as `WindowProcess` does, row by row, but a row is a number here: the operator has its columns. What a
window holds is a list of units: a unit is its partial as it was stored, or rows that came one after the other without a
firing between. A firing is so many of these units. Until the operator settles (`Accounts.settled`) all of that is only
noted down, so the arithmetic of many rows and firings is done at once, in columns.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from penstock.core.times import to_micros
from penstock.functions.process_functions import KeyedProcess
from penstock.functions.windows.assigners import Bounds
from penstock.functions.windows.process import (
    MADE_BY,
    ONCE,
    Kept,
    Meta,
    TriggerRun,
    WindowContext,
    WindowProcess,
    declared_rows,
    within,
)
from penstock.functions.windows.triggers import (
    FIRE_AT,
    FIRED,
    EveryEventTime,
    EveryRows,
    PurgingTrigger,
)
from penstock.state.declarations import MapState
from penstock.types import Field, Schema

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.expressions import AggregatePlan

Units = list[int]
"""What a window holds, oldest first. It grows; a firing is its first so many."""


class Totalled(NamedTuple):
    """What a window with aggregates gives when it fires: the operator evaluates it."""

    key: Any
    bounds: Bounds
    units: Units
    upto: int
    """How many of them."""
    retracted: bool


class Account:
    """A window of a key since the operator settled last."""

    __slots__ = ("armed", "count", "open", "sent", "units")

    def __init__(self, units: Units, count: int = 0) -> None:
        self.units = units
        self.open = False
        """Whether the next row belongs to the last unit."""
        self.armed = False
        """Whether the trigger has no interest in a further row that is not late."""
        self.count = count
        """What `EveryRows` remembers."""
        self.sent: tuple[Units, int] | None = None
        """The firing since which the session did not change."""


class Accounts:
    """What was noted down since the operator settled last."""

    def __init__(self) -> None:
        self.windows: dict[tuple[Any, Bounds], Account] = {}
        self.stored: list[tuple[int, Any]] = []
        """Units that are stored partials."""
        self.rows: list[int] = []
        """Numbers of rows, and of the units that they belong to."""
        self.units_of_rows: list[int] = []
        self.units = 0

    def from_state(self, partial: Any) -> int:
        """A unit of a stored partial."""
        self.stored.append((self.units, partial))
        self.units += 1
        return self.units - 1

    def add(self, account: Account, number: int) -> None:
        """A row comes into a window."""
        if not account.open:
            account.units.append(self.units)
            account.open = True
            self.units += 1
        self.rows.append(number)
        self.units_of_rows.append(account.units[-1])

    def settled(self) -> list[tuple[Any, Bounds, Account]]:
        """The windows that were touched; afterwards nothing is noted down."""
        touched = [(key, bounds, account) for (key, bounds), account in self.windows.items()]
        self.windows, self.stored, self.rows, self.units_of_rows, self.units = {}, [], [], [], 0
        return touched


class PartialProcess(WindowProcess):
    """Notes down which rows a firing is of. Rows are pairs of a number and the row, which only own triggers look at."""

    partials: MapState[tuple[int, int, bool], Any]
    """The partial of a window, and the one that was sent of a session."""

    def __init__(self, *args: Any, retracts: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._retracts = retracts
        self.accounts = Accounts()
        plain = within(self._trigger)
        self.looks_at_rows = type(plain) not in (*ONCE, EveryRows)
        self._purges = isinstance(self._trigger, PurgingTrigger)
        self._every = plain.rows if type(plain) is EveryRows else None
        self._interval = plain.every_us if type(plain) is EveryEventTime else None
        if self._merging:
            self._every = self._interval = None

    @property
    def class_of_partials(self) -> type[Any]:
        """What partials are in the state."""
        return type(self).partials.types[1]

    @property
    def retracts(self) -> bool:
        """Whether what was sent of a session may have to be retracted."""
        return self._retracts

    # -- rows -----------------------------------------------------------------------------------------------------------

    def _take(self, row: tuple[int, Any], time: int | None, bounds: Bounds, ctx: WindowContext) -> None:
        account = self._account(bounds, ctx)
        if not account.units:
            self._remember(bounds, Meta(bounds, chunks=1))
        self.accounts.add(account, row[0])
        if account.armed and bounds[1] - self._before_end > ctx.watermark_us:
            return
        if self._every is not None:
            self._count(self._every, account, bounds, ctx)
        else:
            result = self._trigger.on_row(row[1], self._time_window(bounds), TriggerRun(self, bounds, ctx))
            account.armed = self._once and not result
            self._act(result, bounds, ctx)
        if not self._global:
            self.set_timer(self._cleanup_us(bounds), "event", bounds, ctx)

    def _count(self, every: int, account: Account, bounds: Bounds, ctx: WindowContext) -> None:
        """What `EveryRows` does, which remembers the number in the window's account."""
        account.count += 1
        if account.count >= every:
            account.count = 0
            self._fire(bounds, ctx)
            if self._purges:
                self._purge(bounds, ctx)

    # -- timers ---------------------------------------------------------------------------------------------------------

    def on_timer(self, at: datetime, ctx: Any) -> None:
        if self._interval is None or ctx.time_domain != "event":
            super().on_timer(at, ctx)
            return
        at_us = to_micros(at)
        fired = self.timers.get((at_us, True), ())
        self.timers.remove((at_us, True))
        for bounds in fired:
            if at_us < bounds[1] - self._before_end:
                self._fire_early(at_us, bounds, ctx)
            else:
                self._fire_on_timer(at, at_us, bounds, ctx)

    def _fire_early(self, at_us: int, bounds: Bounds, ctx: WindowContext) -> None:
        """What `EveryEventTime` does before the end of a window, where most of its firings are, step by step the same."""
        if self.memory.get(bounds, {}).get(FIRE_AT) != at_us:
            return
        self.memory.set(bounds, {FIRED: at_us})
        self._fire(bounds, ctx)
        if self._purges:
            self._purge(bounds, ctx)

    def _refuse(self, row: tuple[int, Any], ctx: WindowContext) -> None:
        super()._refuse(row[1], ctx)

    def _account(self, bounds: Bounds, ctx: WindowContext, meta: Meta | None = None) -> Account:
        windows = self.accounts.windows
        found = windows.get((ctx.key, bounds))
        if found is None:
            held = (meta or self._meta(bounds)).chunks
            units = [self.accounts.from_state(self.partials.get((*bounds, False)))] if held else []
            count = 0 if self._every is None else cast("int", self.memory.get(bounds, {}).get("rows", 0))
            found = windows[ctx.key, bounds] = Account(units, count)
        return found

    # -- firing ---------------------------------------------------------------------------------------------------------

    def _fire(self, bounds: Bounds, ctx: WindowContext) -> None:
        account = self._account(bounds, ctx)
        account.armed = False
        if not account.units:
            return
        account.open = False
        firing = (account.units, len(account.units))
        if self._retracts:
            account.sent = firing
            self._remember(bounds, Meta(bounds, chunks=1, sent=1))
        self._deliver_at(bounds, firing, ctx)

    def deliver(self, bounds: Bounds, rows: tuple[Units, int], ctx: WindowContext, *, retracted: bool = False) -> None:
        ctx.emit(Totalled(ctx.key, bounds, *rows, retracted))

    def _purge(self, bounds: Bounds, ctx: WindowContext) -> None:
        account = self._account(bounds, ctx)
        account.units, account.open, account.sent = [], False, None
        self._remove_partials(bounds)
        if self._merging:  # the session goes on: rows that come still belong to it
            self._remember(bounds, Meta(bounds))
        else:
            self.windows.remove(bounds)

    def _forget(self, bounds: Bounds, ctx: WindowContext) -> None:
        super()._forget(bounds, ctx)
        self.accounts.windows.pop((ctx.key, bounds), None)

    def _remove_partials(self, bounds: Bounds) -> None:
        self.partials.remove((*bounds, False))
        if self._retracts:
            self.partials.remove((*bounds, True))

    # -- sessions -------------------------------------------------------------------------------------------------------

    def _retract(self, bounds: Bounds, meta: Meta, ctx: WindowContext) -> None:
        sent = self._account(bounds, ctx, meta).sent
        if sent is None:
            sent = ([self.accounts.from_state(self.partials.get((*bounds, True)))], 1)
        self._deliver_at(bounds, sent, ctx, retracted=True)

    def _together(self, touched: list[Bounds], metas: list[Meta], merged: Bounds, ctx: WindowContext) -> Meta:
        windows = self.accounts.windows
        accounts = [self._account(bounds, ctx, meta) for bounds, meta in zip(touched, metas, strict=True)]
        for bounds in touched:
            self._remove_partials(bounds)
            del windows[ctx.key, bounds]
        one = accounts[0]
        if len(accounts) > 1:
            one = Account(sorted(chain.from_iterable(account.units for account in accounts)))
        one.sent = None
        windows[ctx.key, merged] = one
        return Meta(merged, chunks=1 if one.units else 0)

    # -- settling -------------------------------------------------------------------------------------------------------

    def keep(self, bounds: Bounds, account: Account, partial: Any, sent: Any) -> None:
        """Store what a window of the current key holds, and what was sent of it, where there is any."""
        if account.units:
            self.partials.set((*bounds, False), partial)
        if account.sent is not None:
            self.partials.set((*bounds, True), sent)
        if self._every is not None:
            if account.count:
                self.memory.set(bounds, {"rows": account.count})
            else:
                self.memory.remove(bounds)

    def with_kept_rows(self) -> list[tuple[Bounds, Meta, list[Kept]]]:
        """The windows of the current key of which a version before kept rows, or that were sent, with these rows."""
        of_rows = ((key[0], key[1]) for key, _ in self.rows.items())
        known = dict.fromkeys([*self.windows.keys(), *of_rows])
        metas = [(bounds, self._meta(bounds)) for bounds in known if not self._merging or self.windows.contains(bounds)]
        return [(bounds, meta, self._contents(meta)) for bounds, meta in metas]

    def adopt(self, bounds: Bounds, meta: Meta) -> None:
        """Forget these rows, of which there are partials now."""
        self._remove_chunks(meta)
        sent = min(meta.sent, 1) if self.retracts else 0
        self._remember(bounds, Meta(bounds, chunks=min(meta.chunks, 1), sent=sent))


def schema_of_partials(plan: AggregatePlan) -> Schema:
    """The partials of a window in the state: columns are named by the aggregates that they are of."""
    named = enumerate(zip(plan.partials_of, plan.partial_fields, strict=True))
    return Schema(tuple(Field(f"{of}_{place}", field.type, nullable=True) for place, (of, field) in named))


def of_partials(taken: type[Any], partial: type[Any]) -> type[PartialProcess]:
    """The process for rows `taken` and partials `partial`: states are declared by class.

    The rows that versions before kept are declared too, for their snapshots.
    """
    partials = MapState(tuple[int, int, bool], cast("Any", partial))
    partials.name = "partials"
    partials.exact = True  # the sum of ints has other parts than that of floats
    of = cast("Any", KeyedProcess)[taken, Totalled]
    states = {"rows": declared_rows(taken), "partials": partials, "__orig_bases__": (of,)}
    made = type("agg", (PartialProcess,), states)
    setattr(made, MADE_BY, (of_partials, (taken, partial)))
    made.__module__ = __name__
    return made
