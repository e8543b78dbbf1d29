"""What one history is about: the job's shape, its rows, its settings, what is asked of it and which faults hit it.

All of it is drawn from the seed, so a seed says everything.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from penstock.protocol.checkpoints import CheckpointSettings
from penstock.protocol.frames import Channel
from penstock.protocol.jobevents import RequestKind, Topology
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.messages import Flavour, SubtaskId
from penstock.protocol.restarts import ExponentialDelay, FixedDelay, NoRestart, RestartStrategy

MAX_PARALLELISM = 12
KEYS = 8
SPLITS = ("0", "1")
WINDOW = 20

EXTRAS = {"uncertain appends": 0.1, "endless": 0.1, "large acks": 0.06}
"""What a history may have besides its faults, and how often."""

Shape = Literal["chain", "file", "deep", "kafka", "deepkafka", "direct"]
VERTICES: dict[Shape, tuple[str, ...]] = {
    "chain": ("s",),
    "file": ("s", "k"),
    "deep": ("s", "m", "k"),
    "kafka": ("s", "k", "w"),
    "deepkafka": ("s", "m", "k", "w"),
    "direct": ("s",),
}
"""s reads, m passes on by key, k counts by key (and has the file sink, if there is no w), w publishes to Kafka. In
`direct` s filters its rows and publishes them itself, by the positions of its splits."""


@dataclass(frozen=True)
class Row:
    """A row of a split."""

    id: int
    key: int
    time: int

    @property
    def spread(self) -> int:
        """The key in front of m: another than in front of k, so that every m sends rows to every k."""
        return self.id % KEYS


@dataclass(frozen=True)
class Request:
    """Something that a client asks for."""

    at_ms: int
    kind: RequestKind
    drain: bool = False
    parallelism: int = 1


@dataclass(frozen=True)
class Scenario:
    """One history's givens."""

    seed: int
    shape: Shape
    windowed: bool
    flavour: Flavour
    candidates: int
    workers: int
    slots: int
    parallelism: int
    splits: dict[str, tuple[Row, ...]]
    checkpoints: CheckpointSettings
    restarts: RestartStrategy
    resumable: bool
    """Whether somebody goes on with the job when no restart is left, perhaps with a changed graph."""
    credit_bytes: int
    pace_ms: int
    concurrent_io: bool
    idle_chance: float
    slow_subtask: str
    """One that works slowly until the world heals, so that barriers come far apart."""
    requests: tuple[Request, ...]
    asks_checkpoint_ms: int | None
    """When a client asks for a checkpoint besides the periodic ones."""
    faults: tuple[tuple[int, str], ...]
    heal_ms: int
    extras: frozenset[str] = frozenset()
    """What is drawn beside all that, from a generator of its own: other seeds' histories stay what they are."""

    @property
    def vertices(self) -> tuple[str, ...]:
        """Upstream first."""
        return VERTICES[self.shape]

    @property
    def troubled(self) -> bool:
        """Whether anything may go wrong."""
        return bool(self.faults or self.slow_subtask or self.extras & {"uncertain appends", "large acks"})

    @property
    def direct(self) -> bool:
        """Whether the subtasks of s publish what they read, without waiting for checkpoints."""
        return self.shape == "direct"

    def becomes(self, row: Row) -> bool:
        """Whether the filter of `direct` lets a row pass."""
        return row.id % 4 != 0

    @property
    def endless(self) -> bool:
        """Whether sources wait for more when they have read everything, until somebody stops the job."""
        return "endless" in self.extras

    @property
    def exact(self) -> bool:
        """Whether every row counts exactly once."""
        return self.flavour == "aligned"

    def topology(self, parallelism: int) -> Topology:
        """The subtasks, consumers first."""
        vertices = self.vertices
        subtasks = tuple(SubtaskId(v, i) for v in reversed(vertices) for i in range(parallelism))
        return Topology(
            subtasks=subtasks,
            sources=frozenset(s for s in subtasks if s.vertex == "s"),
            sinks=frozenset(s for s in subtasks if s.vertex == vertices[-1]),
            exchanges=dict.fromkeys(vertices[1:], parallelism),
            publishers=frozenset({"w"} & set(vertices)),
            slots={s: s.index for s in subtasks},
            parallelism=parallelism,
            max_parallelism=MAX_PARALLELISM,
        )

    def upstream(self, vertex: str) -> str | None:
        """The vertex before."""
        position = self.vertices.index(vertex)
        return self.vertices[position - 1] if position else None

    def downstream(self, vertex: str) -> str | None:
        """The vertex behind."""
        position = self.vertices.index(vertex)
        return self.vertices[position + 1] if position + 1 < len(self.vertices) else None

    def channels(self, subtask: SubtaskId, parallelism: int) -> tuple[Channel, ...]:
        """All producers, or only the own one in front of a publisher."""
        if self.upstream(subtask.vertex) is None:
            return ()
        if subtask.vertex == "w":
            return (Channel(0, subtask.index),)
        return tuple(Channel(0, producer) for producer in range(parallelism))

    @staticmethod
    def key_groups(subtask: SubtaskId, parallelism: int) -> KeyGroupRange:
        """The key groups of a subtask."""
        return key_group_range(subtask.index, parallelism, MAX_PARALLELISM)


def key_group_of(key: int) -> int:
    """A fixed spread of the keys."""
    return key * 7 % MAX_PARALLELISM


def draw_scenario(seed: int, faults: tuple[str, ...], damages: tuple[str, ...] = ()) -> Scenario:
    """The scenario of a seed; `faults` are the names that may be drawn, `damages` those of which at most one is."""
    draw = random.Random(seed ^ 0x5EED)
    shape: Shape = draw.choice(("chain", "file", "file", "deep", "deep", "kafka", "kafka", "kafka", "deepkafka"))
    if random.Random(f"{seed}/direct").random() < 0.1:
        shape = "direct"
    workers = draw.randint(2, 3)
    parallelism = draw.randint(1, 3)
    flavour: Flavour = "at_least_once" if draw.random() < 0.1 and shape != "direct" else "aligned"
    publishes = "w" in VERTICES[shape] or shape == "direct"
    hits = _hits(draw, [name for name in faults if publishes or not _concerns_publishing(name)])
    scenario = Scenario(
        seed=seed,
        shape=shape,
        windowed=draw.random() < 0.5,
        flavour=flavour,
        candidates=draw.randint(2, 3),
        workers=workers,
        slots=draw.randint(2 if workers == 2 else 1, 3),
        parallelism=parallelism,
        splits={name: _rows(draw, int(name)) for name in SPLITS},
        checkpoints=CheckpointSettings(
            interval_ms=draw.choice((80, 150, 300)),
            min_pause_ms=draw.choice((0, 0, 50)),
            timeout_ms=draw.choice((600, 900)),
            max_concurrent=draw.choice((1, 1, 2, 3)),
            tolerable_failed=draw.choice((0, 1, 3, 3)),
            flavour=flavour,
        ),
        restarts=_restarts(draw),
        resumable=random.Random(seed ^ 0x4E5).random() < 0.5,
        credit_bytes=draw.choice((30, 60, 10_000)),
        pace_ms=draw.choice((10, 30, 60)),
        concurrent_io=draw.random() < 0.3,
        idle_chance=draw.choice((0.03, 0.03, 0.4)),
        slow_subtask=f"{draw.choice(VERTICES[shape])}[{draw.randrange(parallelism)}]" if draw.random() < 0.3 else "",
        requests=_requests(draw, hits),
        asks_checkpoint_ms=_asks_checkpoint_ms(random.Random(seed ^ 0xC4E)),
        faults=hits,
        heal_ms=2600,
    )
    if scenario.slow_subtask.startswith("m"):  # enough rows that a barrier stands far behind at the slow one
        more = random.Random(seed ^ 0x10)
        splits = {name: rows + _more_rows(more, rows[-1]) for name, rows in scenario.splits.items()}
        scenario = replace(scenario, splits=splits, pace_ms=10)
    damaging = random.Random(seed ^ 0xDA)
    if damages and "w" in scenario.vertices and damaging.random() < 0.06:
        damage = (damaging.randint(0, 1000), damaging.choice(damages))
        scenario = replace(scenario, faults=tuple(sorted((*scenario.faults, damage))))
    if random.Random(f"{seed}/incremental").random() < 0.4:
        scenario = replace(scenario, checkpoints=msgspec.structs.replace(scenario.checkpoints, incremental=True))
    return replace(scenario, extras=_extras(seed))


def _extras(seed: int) -> frozenset[str]:
    draw = random.Random(f"{seed}/extras")
    return frozenset(name for name, chance in EXTRAS.items() if draw.random() < chance)


def _more_rows(draw: random.Random, last: Row) -> tuple[Row, ...]:
    return tuple(Row(last.id + number, draw.randrange(KEYS), last.time + 2 * number) for number in range(1, 60))


def _rows(draw: random.Random, split: int) -> tuple[Row, ...]:
    time = draw.randint(0, 30) if draw.random() < 0.7 else draw.randint(0, 100)
    rows: list[Row] = []
    for number in range(draw.randint(6, 30)):
        time += draw.randint(0, 6)
        late = draw.randint(10, 60) if draw.random() < 0.2 else 0
        rows.append(Row(split * 1000 + number, draw.randrange(KEYS), max(0, time - late)))
    return tuple(rows)


def _restarts(draw: random.Random) -> RestartStrategy:
    chance = draw.random()
    if chance < 0.06:
        return NoRestart()
    if chance < 0.12:
        return FixedDelay(attempts=2, delay_ms=50)
    return ExponentialDelay(initial_ms=draw.choice((20, 250)), max_ms=300, reset_after_ms=1000)


def _concerns_publishing(name: str) -> bool:
    return any(word in name for word in ("publisher", "commit", "transaction"))


def _hits(draw: random.Random, faults: list[str]) -> tuple[tuple[int, str], ...]:
    """Which faults, and when. Those that wait for a step of somebody are armed early."""
    count = 0 if not faults or draw.random() < 0.1 else draw.randint(1, 6)
    special = [name for name in faults if _concerns_publishing(name)]
    if count and draw.random() < 0.04:
        return tuple((draw.randint(425, 475), "kill_worker") for _ in range(2))
    names = [draw.choice(special) if special and draw.random() < 0.35 else draw.choice(faults) for _ in range(count)]
    return tuple(sorted((draw.randint(0, 1200) if " at " in n else draw.randint(100, 2200), n) for n in names))


def _asks_checkpoint_ms(draw: random.Random) -> int | None:
    return draw.randint(300, 2000) if draw.random() < 0.1 else None


def _requests(draw: random.Random, faults: tuple[tuple[int, str], ...]) -> tuple[Request, ...]:
    requests: list[Request] = []
    if any(name.endswith("Savepoint") for _, name in faults):
        requests.append(Request(draw.randint(800, 1400), "savepoint"))
    if faults and draw.random() < 0.06:  # the worker is lost before the first COMPLETE, and the job is cancelled
        requests.append(Request(draw.randint(1350, 1900), "cancel"))
    elif draw.random() < 0.1:
        requests.append(Request(draw.randint(380, 620), draw.choice(("cancel", "suspend"))))
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        kind: RequestKind = draw.choice(("savepoint", "savepoint", "rescale", "rescale", "rescale", "suspend"))
        requests.append(Request(draw.randint(150, 1600), kind, parallelism=draw.randint(1, 3)))
    if draw.random() < 0.25:
        kind = draw.choice(("stop", "stop", "cancel"))
        requests.append(Request(draw.randint(300, 2000), kind, drain=kind == "stop" and draw.random() < 0.5))
    return tuple(sorted(requests, key=lambda request: request.at_ms))
