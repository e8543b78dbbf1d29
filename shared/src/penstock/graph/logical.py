"""The logical plan: what the user wrote, checked and typed, before it is cut into vertices.

A `Node` is one verb applied to its inputs; its `operation` says which and with what. Nodes are made by `penstock.api`,
read by `penstock.graph.jobgraph` (structure) and `penstock.task.operators` (behaviour). Python functions, sources
and sinks stand in operations as objects: a worker that runs a job imports the user's file again and finds them by the
node's id, they never travel.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from penstock.process_functions import BROADCAST
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM
from penstock.types import BOOLEAN, TIMESTAMP, Field, Schema

if TYPE_CHECKING:
    from penstock.connectors.base import EventTime, Sink, Source
    from penstock.connectors.lookups import Lookup
    from penstock.expressions import Expr
    from penstock.process_functions import AnyProcess, OutputTag
    from penstock.triggers import Trigger


# -- windows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TumblingWindow:
    """`[n * size + offset, (n + 1) * size + offset)` in microseconds, on the clock of the time zone or else in UTC."""

    size_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Windows of `size_us` that start every `slide_us`; a row belongs to each that covers it."""

    size_us: int
    slide_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class CumulativeWindow:
    """Windows that start every `size_us` and end after one, two, ... steps, up to `size_us` (Flink: CUMULATE)."""

    size_us: int
    step_us: int
    offset_us: int = 0
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Per key, rows that are at most a gap apart share a window `[first, last + gap)` (Flink merges windows that touch).

    The gap is `gap_us`, or that of each row: a duration, or whole microseconds.
    """

    gap_us: int
    gap: Expr | None = None


@dataclass(frozen=True, slots=True)
class GlobalWindow:
    """One window per key, without end."""


FixedWindow = TumblingWindow | SlidingWindow | CumulativeWindow
"""Windows whose bounds are known beforehand."""

Window = FixedWindow | SessionWindow
RowWindow = Window | GlobalWindow
"""Windows whose rows are kept."""

RETRACTED: Final = "retracted"
"""Boolean column of changes, and of sessions with lateness: the row that was sent for this key no longer stands."""

RANK: Final = "rank"
"""Int64 column of `top`: the place of a row among those of its key, from 1."""


def window_bounds(*, retracts: bool) -> tuple[Field, ...]:
    """What a result says of its window, and with `retracts` whether it still stands."""
    bounds = (Field("window_start", TIMESTAMP), Field("window_end", TIMESTAMP))
    return (*bounds, Field(RETRACTED, BOOLEAN)) if retracts else bounds


# -- operations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Read:
    """The rows of a source."""

    source: Source[Any]


@dataclass(frozen=True, eq=False)
class Project:
    """`select`, `with_columns`, `drop` and `rename`: every output column as an expression over the input."""

    verb: Literal["select", "with_columns", "drop", "rename"]
    columns: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, eq=False)
class Filter:
    """Keeps the rows for which the predicate is true (neither false nor null)."""

    predicate: Expr


@dataclass(frozen=True, eq=False)
class Explode:
    """One row per element of the list columns (of equal lengths within a row); an empty list or null gives one null."""

    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class MapRows:
    """A Python function per row: one row out, or with `flat` any number of rows."""

    function: Callable[[Any], Any]
    flat: bool


@dataclass(frozen=True, eq=False)
class MapBatches:
    """A Python function per Arrow record batch. It returns as many rows as it got."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How calls that wait for others are made: how many at once, for how long, how often."""

    capacity: int
    """Most calls of a subtask whose results have not been sent on."""
    timeout_us: int | None
    """Of a row, all its attempts together."""
    retries: int
    retry_delay_us: int
    """Before the second attempt; twice as long before each further one."""
    retry_on: tuple[type[Exception], ...]
    ordered: bool
    """Whether results come in the order of the rows; if not, they overtake each other between two watermarks."""


@dataclass(frozen=True, eq=False)
class MapAsync:
    """An async Python function per row: one row out when it has come."""

    function: Callable[[Any], Awaitable[Any]]
    calls: CallSettings
    on_error: Callable[[Any, Exception], Any] | None = None
    """Gives the result of a row whose last attempt raised, or whose time is over."""


@dataclass(frozen=True, eq=False)
class As:
    """Gives the columns a row class again; nothing happens at run time."""


@dataclass(frozen=True, eq=False)
class Union:
    """The rows of all inputs, which have the same schema."""


@dataclass(frozen=True, eq=False)
class KeyBy:
    """Rows with equal values of `Node.keys` go to the same subtask."""


@dataclass(frozen=True, eq=False)
class WindowAggregate:
    """Aggregates per key and window; output: keys, `window_start`, `window_end`, aggregates. Event time: end - 1 us."""

    window: Window
    aggregates: tuple[tuple[str, Expr], ...]
    allowed_lateness_us: int = 0
    late: OutputTag[Any] | None = None
    unpacked: bool = False
    """Whether the one aggregate is a row, or rows in the order of their rank: its fields are the columns instead."""

    @property
    def window_fields(self) -> tuple[Field, ...]:
        """What a result says of its window, behind the keys."""
        return window_bounds(retracts=self.retracts)

    @property
    def retracts(self) -> bool:
        """Whether a window that was sent may be no more: late rows move the bounds of sessions and join them."""
        return isinstance(self.window, SessionWindow) and self.allowed_lateness_us > 0


@dataclass(frozen=True, eq=False)
class RunningAggregate:
    """Aggregates per key over all rows so far; emits the new result of every key that a batch touched."""

    aggregates: tuple[tuple[str, Expr], ...]
    ttl_us: int | None = None
    """How long after it was last written the state of a key is kept; so in all operations that have it."""


@dataclass(frozen=True, eq=False)
class Over:
    """Every row with columns computed from its key's rows by event time: SQL's OVER.

    A frame is the rows up to this one: all, the last `rows`, or those at most `within_us` older.
    """

    columns: tuple[tuple[str, Expr], ...]
    within_us: int | None = None
    rows: int | None = None
    late: OutputTag[Any] | None = None


@dataclass(frozen=True, eq=False)
class Deduplicate:
    """The first row per key by arrival, or each newer one; a key counts as new `ttl_us` after it was written."""

    keep: Literal["first", "last"]
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class Top:
    """The `n` rows per key in which `by` is greatest (or least), with their rank; emits the ranks that changed.

    Of changes, whose result are changes again, they are the best rows that hold; what stood at a rank is taken back.
    """

    n: int
    by: Expr
    descending: bool
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class LastRows:
    """The last row of every key of a stream of updates, at the end of the input; none where `retracted` is true."""

    retracted: str | None = None
    all_that_hold: bool = False
    """Of changes: every row that holds, as often as it does; the keys say where it is kept, not what it replaces."""


@dataclass(frozen=True, eq=False)
class ToChanges:
    """A stream of updates as changes: the former row of the key is taken back (Flink: ChangelogNormalize)."""

    retracted: str | None = None
    """The column of the updates in which a row says that its key has none any more."""
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class AggregateChanges:
    """Named aggregates per key of changes; what was sent before is taken back when it changes.

    Without any, a key that has rows is there once: the distinct rows.
    """

    aggregates: tuple[tuple[str, Expr], ...]
    verb: Literal["agg", "distinct", "intersect", "minus"] = "agg"
    holds: Expr | None = None
    """Made of sums: what must be true of a key's rows for it to have a result (SQL: HAVING)."""
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class AssignWindows:
    """Every row once for each window that its event time is in, with the bounds: Flink's windowing table function.

    Of other columns those of the output's schema stay.
    """

    window: FixedWindow


@dataclass(frozen=True, eq=False)
class WindowChanges:
    """Named aggregates per key and window of changes: what holds when the window ends is sent then, and forgotten.

    The bounds of the window are the last two of the keys. Output: keys, aggregates. Event time: end - 1 us.
    """

    window: FixedWindow
    aggregates: tuple[tuple[str, Expr], ...]


@dataclass(frozen=True, eq=False)
class Materialize:
    """Changes by another key than their own, of which a sink has one row: the last that holds."""

    ttl_us: int | None = None


@dataclass(frozen=True, slots=True)
class Within:
    """Rows meet whose event times are so close: that of the right one is `[left + lower_us, left + upper_us]`."""

    lower_us: int
    upper_us: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """A left row meets the newest right row that is not newer, at most `tolerance_us` older."""

    tolerance_us: int | None = None


JoinTime = Within | FixedWindow | AsOf
"""Which rows of a key meet, beside the key; rows of windows meet in each window that they share."""

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
"""`semi`: the left rows that meet any, once; `anti`: those that meet none."""


@dataclass(frozen=True, eq=False)
class Join:
    """Rows of two inputs that have the same key and meet in time. Keys, and all other columns, have unlike names.

    The right input has the names of the left one for the keys. Output: the left columns, the right ones but the keys, and
    of windows `window_start` and `window_end`; of `semi` and `anti` the left columns.
    """

    how: JoinKind
    time: JoinTime


@dataclass(frozen=True, eq=False)
class RegularJoin:
    """Rows of two inputs that have the same key, as they hold now; keys and columns as those of `Join`.

    Inputs are of facts or of changes. Output: changes, but facts if nothing can ever be taken back.
    """

    how: JoinKind
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class LookupJoin:
    """Rows beside those that another system has for their key, when these have come."""

    lookup: Lookup[Any]
    how: Literal["inner", "left"]
    on: tuple[tuple[str, str], ...]
    """Key columns of the input, and what they are called in the lookup."""
    columns: tuple[tuple[str, str], ...]
    """What is taken of the lookup: name in the output, name in the lookup."""
    calls: CallSettings


@dataclass(frozen=True, eq=False)
class RunningReduce:
    """`function(accumulated, row)` per key; emits the new result of every key that a batch touched."""

    function: Callable[[Any, Any], Any]
    ttl_us: int | None = None


@dataclass(frozen=True, eq=False)
class ProcessRows:
    """A `Process` (no key) or, on a keyed stream, a `KeyedProcess` with state and timers; a `KeyedCoProcess` of two.

    A `BroadcastProcess` or `KeyedBroadcastProcess` has a broadcast stream as second input.
    """

    process: AnyProcess


@dataclass(frozen=True, eq=False)
class WindowRows(ProcessRows):
    """A function over the rows of a key and window, or aggregates, when the trigger fires."""

    window: RowWindow
    trigger: Trigger
    allowed_lateness_us: int = 0
    late: OutputTag[Any] | None = None
    aggregates: tuple[tuple[str, Expr], ...] = ()
    """Empty if `process` calls a function."""
    window_fields: tuple[Field, ...] = ()
    """What a result of aggregates says of its window, behind the keys."""
    count: tuple[int, int] | None = None
    """Of count windows: how many rows, and after how many each."""


@dataclass(frozen=True, eq=False)
class AssignEventTime:
    """Gives rows another event time, and watermarks of its own: Flink's assignTimestampsAndWatermarks."""

    event_time: EventTime


@dataclass(frozen=True, eq=False)
class AssignProcessingTime:
    """Makes the moment at which a row passes its event time; watermarks follow the clock."""

    every_us: int
    """How often time comes on when no row does."""


@dataclass(frozen=True, eq=False)
class Side:
    """The side output `tag` of its input: late rows, or what a process emitted to it."""

    tag: OutputTag[Any]


@dataclass(frozen=True, eq=False)
class DeadLetters:
    """The bad records of a source whose policy is `dead_letter`: columns error, raw, where."""


@dataclass(frozen=True, eq=False)
class Write:
    """Hands rows to a sink."""

    sink: Sink


Operation = (
    Read | Project | Filter | Explode | MapRows | MapBatches | MapAsync | As | Union | KeyBy | WindowAggregate
    | RunningAggregate | RunningReduce | Over | Deduplicate | Top | LastRows | ToChanges | AggregateChanges
    | AssignWindows | WindowChanges | Materialize | Join | RegularJoin | LookupJoin | ProcessRows | AssignEventTime
    | AssignProcessingTime | Side | DeadLetters | Write
)  # fmt: skip


WAITING: Final = MapAsync | LookupJoin
"""Verbs whose rows wait for answers, and hold event time back: what is kept of them are the rows that wait."""

MAKING_ROWS: Final = (
    WindowAggregate | RunningAggregate | RunningReduce | Over | Top | LastRows | ToChanges | AggregateChanges
    | WindowChanges | Materialize | Join | RegularJoin
)  # fmt: skip
"""Verbs of a keyed stream whose rows have times of their own: what comes in need not say how far time has come."""


# -- nodes --------------------------------------------------------------------------------------------------------------


_DAY_US: Final = 86_400_000_000


def _reach_us(window: RowWindow | JoinTime) -> int:
    match window:
        case GlobalWindow() | AsOf():
            return 0
        case Within():
            return max(abs(window.lower_us), abs(window.upper_us))
        case SessionWindow(gap_us=gap_us):
            return gap_us
        case _:
            return window.size_us + (_DAY_US if window.timezone is not None else 0)


Mode = Literal["append", "upsert", "retract"]
"""What rows of a stream are: facts; each the newest one of its key (and window, or rank); or changes, of which each adds
a row or, where `RETRACTED` is true, takes back one that was added, the same in all columns."""


@dataclass(eq=False)
class Node:
    """One verb of a pipeline. `id` numbers the nodes in the order in which the file made them (`n0`, `n1`, ...)."""

    id: str
    operation: Operation
    inputs: tuple[Node, ...]
    schema: Schema
    """Columns of the output."""
    row_type: type[Any]
    """The class whose instances Python functions get for rows of the output; the user's, or one that was made."""
    event_time: bool
    """Whether output rows have an event time."""
    keys: tuple[str, ...] = ()
    """Key columns if the output is keyed."""
    mode: Mode = "append"
    uid: str | None = None
    parallelism: int | None = None
    slot_group: str | None = None
    chainable: bool = True
    sides: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    """Schema per side output tag that this node may emit to."""

    @property
    def row_schema(self) -> Schema:
        """The columns of rows, without the one that says of changes what they do."""
        return Schema(tuple(field for field in self.schema if self.mode != "retract" or field.name != RETRACTED))

    @property
    def updates(self) -> bool:
        """Whether a row may make an earlier one no longer true."""
        return self.mode != "append"

    def takes_all(self, number: int) -> bool:
        """Whether every row of that input reaches every subtask."""
        operation = self.operation
        return number == 1 and isinstance(operation, ProcessRows) and isinstance(operation.process, BROADCAST)

    @property
    def verb(self) -> str:
        """The verb as the user knows it."""
        match self.operation:
            case Project(verb=verb) | AggregateChanges(verb=verb):
                return verb
            case MapRows(flat=flat):
                return "flat_map" if flat else "map"
            case WindowAggregate() | AssignWindows():
                return "window"
            case RunningAggregate() | WindowChanges():
                return "agg"
            case RunningReduce():
                return "reduce"
            case WindowRows():
                return "window"
            case LastRows():
                return "final"
            case ToChanges():
                return "changes"
            case RegularJoin():
                return "join"
            case LookupJoin():
                return "lookup_join"
            case ProcessRows():
                return "process"
            case AssignEventTime():
                return "with_event_time"
            case AssignProcessingTime():
                return "with_processing_time"
            case MapBatches():
                return "map_batches"
            case MapAsync():
                return "map_async"
            case KeyBy():
                return "key_by"
            case DeadLetters():
                return "dead_letters"
            case operation:
                return type(operation).__name__.lower()

    @property
    def operator_id(self) -> str:
        """What identifies the operator's state: the user's uid, else a name derived from structure."""
        return self.uid or f"{self.id}-{self.verb}"


def ancestors(node: Node) -> Iterator[Node]:
    """All that the node is made from; what several paths lead to comes several times."""
    for upstream in node.inputs:
        yield upstream
        yield from ancestors(upstream)


@dataclass(eq=False)
class LogicalPlan:
    """All nodes of a pipeline in the order they were made; every `Write` is an end."""

    name: str
    nodes: list[Node] = field(default_factory=list[Node])
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    """The number of key groups."""
    watermark_interval_us: int = 0
    """How much time a subtask leaves at least between two watermarks that it sends while rows flow."""
    looking: frozenset[str] = frozenset()
    """Ids of nodes, beside process functions, in front of which every row is to tell how far event time has come."""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def node(self, node_id: str) -> Node:
        """The node with that id."""
        return next(node for node in self.nodes if node.id == node_id)

    @property
    def is_bounded(self) -> bool:
        """Whether all its sources come to an end."""
        return all(node.operation.source.bounded for node in self if isinstance(node.operation, Read))

    def carries_watermarks(self, node: Node) -> bool:
        """Whether every row that this node hands on tells how far event time has come: a function behind it looks.

        Windows, running aggregates and the like have rows of their own, with their own times: what is before them need
        not know.
        """
        return node.id in self.leading_to(
            lambda each: isinstance(each.operation, ProcessRows) or each.id in self.looking
        )

    def leading_to(self, wanted: Callable[[Node], bool]) -> set[str]:
        """Ids of the nodes whose rows, in their own event time, come to a node that is wanted."""
        leading: set[str] = set()
        for consumer in reversed(self.nodes):
            makes = isinstance(consumer.operation, MAKING_ROWS | WindowRows | AssignEventTime | AssignProcessingTime)
            if wanted(consumer) or (consumer.id in leading and not makes):
                leading.update(each.id for each in consumer.inputs if each.event_time)
        return leading

    @property
    def window_reach_us(self) -> int:
        """How far the bounds of windows may be from a row of them, of all windows of the plan one behind the other."""
        windows: list[RowWindow | JoinTime] = [
            node.operation.window
            for node in self.nodes
            if isinstance(node.operation, WindowAggregate | WindowRows | AssignWindows)
        ]
        windows += [node.operation.time for node in self.nodes if isinstance(node.operation, Join)]
        return sum(_reach_us(window) for window in windows)

    def watermark_lag_us(self, node: Node) -> int:
        """How far event time stays behind the newest row that this node hands on; windows hand on what is over."""
        match node.operation:
            case Read(source=source):
                return source.event_time.watermarks.lag_us if source.event_time is not None else 0
            case AssignEventTime(event_time=event_time):
                return event_time.watermarks.lag_us
            case WindowAggregate() | WindowChanges() | Over():
                return 0
            case _:
                return max((self.watermark_lag_us(each) for each in node.inputs), default=0)

    def comes_in_order(self, node: Node) -> bool:
        """Whether the sources of these rows say that they come in order of event time, split by split."""
        match node.operation:
            case Read(source=source):
                return source.event_time is not None and source.event_time.watermarks.in_order
            case AssignEventTime(event_time=event_time):
                return event_time.watermarks.in_order
            case _:
                return all(self.comes_in_order(each) for each in node.inputs)

    def ending_in(self, node: Node, write: Write, *, chainable: bool = True) -> LogicalPlan:
        """What a node is made by, with a sink behind it."""
        above = {node, *ancestors(node)}
        end = Node(
            id="collected", operation=write, inputs=(node,), schema=node.schema, row_type=node.row_type,
            event_time=node.event_time, keys=node.keys, mode=node.mode, chainable=chainable,
        )  # fmt: skip
        return replace(self, nodes=[*(each for each in self if each in above), end])

    def by_operator(self, operator_id: str) -> Node | None:
        """The node whose operator has this id, whatever else of the pipeline has changed; None if there is none."""
        return next((node for node in self.nodes if node.operator_id == operator_id), None)
