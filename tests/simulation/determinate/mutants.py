"""The mutants that these histories must kill: the production machines with one rule taken out."""

from __future__ import annotations

from tests.simulation.determinate.world import Task
from tests.simulation.mutating import Mutant, Patch, begins, called, condition, returned, statement, value

from penstock.protocol.determinate import Determinate, DeterminateSource, DeterminateSubtask
from penstock.protocol.restore_points import RestorePoint, RestorePoints
from penstock.protocol.split_publishing import SplitPublisherMachine
from penstock.protocol.units import UnitGate, UnitLedger

_ALL: tuple[tuple[str, tuple[Patch, ...]], ...] = (
    ("a_decision_is_obeyed_before_it_stands_in_the_log", (
        Patch(Determinate, "_propose", begins("for each in wanted.values():\n    self._obey(each)")),
    )),
    ("a_timer_ends_a_batch_by_the_clock", (Patch(DeterminateSubtask, "proposals", begins(
        "if due and self.caught_up:\n    self._steps.append(Batch((), max(now, self.time), self.watermark, False))"
    )),)),
    ("rows_are_taken_wherever_the_split_stands", (
        Patch(DeterminateSource, "_obey", begins(
            "if isinstance(decision, Take):\n"
            "    decision = Take(\n"
            "        decision.vertex, decision.split, self.positions[decision.split], decision.end, decision.time\n"
            "    )"
        )),
    )),
    ("rows_that_were_fetched_are_kept_when_others_were_taken", (
        Patch(DeterminateSource, "_checked", begins("return []")),
    )),
    ("a_barrier_is_obeyed_twice", (Patch(DeterminateSource, "_obey", condition("order", ">", becomes="True")),)),
    ("a_newer_barrier_waits_for_an_older_one", (
        Patch(DeterminateSubtask, "_align", condition("order", "<", becomes="False")),
    )),
    ("a_barrier_holds_nothing_back", (
        Patch(DeterminateSubtask, "_take", statement("_held", "append", becomes="units.append(unit)")),
    )),
    ("what_is_held_back_is_not_in_the_snapshot", (
        Patch(DeterminateSubtask, "_place", value("_held", becomes="()")),
    )),
    ("units_without_a_batch_are_not_in_the_snapshot", (
        Patch(DeterminateSubtask, "_place", value("_units", becomes="()")),
    )),
    ("open_parts_are_not_in_the_snapshot", (Patch(UnitGate, "snapshot", returned(
        "_channels", becomes="return {channel: (state.last, {}) for channel, state in self._channels.items()}"
    )),)),
    ("parts_of_two_incarnations_make_a_unit", (
        Patch(UnitGate, "receive", begins("from dataclasses import replace\npart = replace(part, incarnation=0)")),
    )),
    ("a_unit_counts_twice", (Patch(UnitGate, "receive", condition("number", "last", "<=")),)),
    ("a_part_counts_twice", (Patch(UnitGate, "receive", condition("opened", "refs", "<", becomes="False")),)),
    ("numbers_begin_anew", (Patch(Determinate, "_restore", begins("place = {**place, 'number': 0}")),)),
    ("time_begins_anew", (Patch(Determinate, "_restore", begins("place = {**place, 'time': 0}")),)),
    ("watermarks_of_channels_begin_anew", (
        Patch(DeterminateSubtask, "_place", value("_progress", becomes="{}")),
    )),
    ("a_snapshot_while_a_batch_is_processed", (
        Patch(Determinate, "marker", begins("return self._snapshot(checkpoint, nonce, aligned=False)")),
    )),
    ("a_snapshot_behind_a_barrier_that_stops", (
        Patch(Determinate, "_advance", condition("_markers", "stopped", becomes="self._markers")),
    )),
    ("what_comes_behind_a_barrier_that_stops_is_processed", (
        Patch(DeterminateSubtask, "_align", statement("stopped", becomes="pass")),
        Patch(DeterminateSource, "_obey", statement("stopped", becomes="pass")),
    )),
    ("a_snapshot_is_acknowledged_before_the_marks", (
        Patch(Determinate, "_acknowledged", condition("visible", becomes="True")),
    )),
    ("a_snapshot_is_acknowledged_before_the_log_has_what_was_sent", (
        Patch(Determinate, "_acknowledged", condition("all_confirmed", becomes="True")),
    )),
    ("a_snapshot_is_acknowledged_before_it_is_durable", (
        Patch(Determinate, "_acknowledged", condition("stored", becomes="True")),
        Patch(Determinate, "stored", begins("if (checkpoint, nonce, aligned) not in self._pending:\n    return []")),
    )),
    ("an_older_snapshot_takes_the_place_of_a_newer", (
        Patch(RestorePoint, "follows", begins("return True")),
    )),
    ("a_snapshot_of_older_decisions_takes_the_place_of_another", (
        Patch(RestorePoint, "follows", condition("decided", ">=", becomes="True")),
    )),
    ("credit_begins_anew", (Patch(DeterminateSubtask, "_place", value("credited", becomes="{}")),)),
    ("what_the_newest_incarnation_reads_is_trimmed", (
        Patch(RestorePoints, "trim", returned("_newest", becomes="return self.of(subtask).needs")),
        Patch(RestorePoints, "trim_decisions", called("min", "newest", "of", becomes="self.of(subtask).decided")),
    )),
    ("any_incarnation_says_what_is_needed", (
        Patch(RestorePoints, "reads", condition("number", "incarnation", becomes="True")),
    )),
    ("the_mark_is_not_read_behind_the_fence", (
        Patch(SplitPublisherMachine, "_on_mark", begins("mark = self._mark if self._mark is not None else mark")),
    )),
    ("an_operator_that_is_not_deterministic", (
        Patch(Task, "operate", begins(
            "from dataclasses import replace\nbatch = replace(batch, time=batch.time + self.incarnation)"
        )),
    )),
    ("credit_is_not_given_back", (Patch(UnitLedger, "processed", statement("processed", "max", becomes="pass")),)),
)  # fmt: skip

MUTANTS = {name: Mutant(number, name, patches) for number, (name, patches) in enumerate(_ALL, 1)}

KILLING = {
    "a_decision_is_obeyed_before_it_stands_in_the_log": 0,
    "a_timer_ends_a_batch_by_the_clock": 0,
    "rows_are_taken_wherever_the_split_stands": 5,
    "rows_that_were_fetched_are_kept_when_others_were_taken": 4,
    "a_barrier_is_obeyed_twice": 43,
    "a_newer_barrier_waits_for_an_older_one": 10,
    "a_barrier_holds_nothing_back": 6,
    "what_is_held_back_is_not_in_the_snapshot": 68,
    "units_without_a_batch_are_not_in_the_snapshot": 6,
    "open_parts_are_not_in_the_snapshot": 6,
    "parts_of_two_incarnations_make_a_unit": 4,
    "a_unit_counts_twice": 0,
    "a_part_counts_twice": 1,
    "numbers_begin_anew": 0,
    "time_begins_anew": 0,
    "watermarks_of_channels_begin_anew": 11,
    "a_snapshot_while_a_batch_is_processed": 6,
    "a_snapshot_behind_a_barrier_that_stops": 37,
    "what_comes_behind_a_barrier_that_stops_is_processed": 0,
    "a_snapshot_is_acknowledged_before_the_marks": 46,
    "a_snapshot_is_acknowledged_before_the_log_has_what_was_sent": 54,
    "a_snapshot_is_acknowledged_before_it_is_durable": 9,
    "an_older_snapshot_takes_the_place_of_a_newer": 47,
    "a_snapshot_of_older_decisions_takes_the_place_of_another": 13943,
    "credit_begins_anew": 15502,
    "what_the_newest_incarnation_reads_is_trimmed": 10,
    "any_incarnation_says_what_is_needed": 103,
    "the_mark_is_not_read_behind_the_fence": 0,
    "an_operator_that_is_not_deterministic": 0,
    "credit_is_not_given_back": 0,
}
"""A seed that kills each mutant."""
