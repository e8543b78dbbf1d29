"""From the job graph to the execution graph: subtasks, key groups, exchanges, slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.graph.jobgraph import JobEdge, JobGraph
from penstock.protocol.frames import Channel
from penstock.protocol.jobevents import Topology
from penstock.protocol.keygroups import KeyGroupRange, key_group_range
from penstock.protocol.messages import SubtaskId
from penstock.protocol.outputs import OutputId


@dataclass(frozen=True)
class ExecutionGraph:
    """A job graph unfolded into subtasks.

    Slot sharing: subtask i of every vertex of a group shares slot i of the group (which also co-locates them); groups
    have slots of their own.
    """

    graph: JobGraph

    def subtasks(self) -> tuple[SubtaskId, ...]:
        """All subtasks, consumers before producers: a producer may send as soon as it runs."""
        return tuple(
            SubtaskId(vertex.id, index)
            for vertex in reversed(self.graph.vertices)
            for index in range(vertex.parallelism)
        )

    def channels(self, subtask: SubtaskId) -> tuple[Channel, ...]:
        """The channels of a subtask: all subtasks of all its inputs; of a forward edge only the one that matches."""
        return tuple(
            Channel(index, producer)
            for index, edge in enumerate(self.graph.vertex(subtask.vertex).inputs)
            for producer in self._partners(edge, subtask.index, self.graph.vertex(edge.vertex).parallelism)
        )

    def outputs(self, subtask: SubtaskId) -> tuple[tuple[JobEdge, tuple[OutputId, ...]], ...]:
        """Every edge out of a subtask with the partitions that it writes to."""
        return tuple(
            (
                edge,
                tuple(
                    OutputId(vertex.id, index, partition)
                    for partition in self._partners(edge, subtask.index, vertex.parallelism)
                ),
            )
            for vertex, index, edge in self.graph.consumers(subtask.vertex)
        )

    @staticmethod
    def _partners(edge: JobEdge, index: int, parallelism: int) -> Iterable[int]:
        """The subtasks at the other end of an edge that this one has to do with."""
        return (index,) if edge.ship == "forward" else range(parallelism)

    def key_groups(self, subtask: SubtaskId) -> KeyGroupRange:
        """The key groups of a subtask."""
        vertex = self.graph.vertex(subtask.vertex)
        return key_group_range(subtask.index, vertex.parallelism, vertex.max_parallelism)

    def exchanges(self) -> dict[str, int]:
        """Vertices behind an exchange, with its number of partitions."""
        return {vertex.id: vertex.parallelism for vertex in self.graph.vertices if vertex.inputs}

    def slots(self) -> dict[SubtaskId, int]:
        """The slot of every subtask."""
        width: dict[str, int] = {}
        for vertex in self.graph.vertices:
            width[vertex.slot_group] = max(width.get(vertex.slot_group, 0), vertex.parallelism)
        base: dict[str, int] = {}
        for group in width:
            base[group] = sum(width[earlier] for earlier in base)
        return {
            subtask: base[self.graph.vertex(subtask.vertex).slot_group] + subtask.index for subtask in self.subtasks()
        }

    def topology(self) -> Topology:
        """What the protocol needs to know."""
        subtasks = self.subtasks()
        sources = frozenset(s for s in subtasks if self.graph.vertex(s.vertex).is_source)
        sinks = frozenset(s for s in subtasks if self.graph.vertex(s.vertex).has_sink)
        return Topology(
            subtasks=subtasks,
            sources=sources,
            sinks=sinks,
            exchanges=self.exchanges(),
            publishers=frozenset(vertex.id for vertex in self.graph.vertices if vertex.publishes),
            slots=self.slots(),
            parallelism=self.graph.parallelism,
            max_parallelism=self.graph.max_parallelism,
            operators={operator.id: operator.state for operator in self.graph.operators() if operator.state},
        )


def exchange_prefix(job: str) -> str:
    """How the topics of all exchanges of a job begin."""
    return f"{job}.x."


def exchange_topic(job: str, vertex: str, generation: int) -> str:
    """The topic of an exchange."""
    return f"{exchange_prefix(job)}{vertex}.g{generation}"


def generation_of(topic: str) -> int | None:
    """The generation of an exchange's topic; None if it is none."""
    number = topic.rpartition(".g")[2]
    return int(number) if number.isdecimal() else None


def credits_topic(job: str) -> str:
    """The topic of credit reports."""
    return f"{job}.credits"
