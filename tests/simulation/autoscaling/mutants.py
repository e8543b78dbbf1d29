"""The mutants that the histories must kill: what the autoscaler decides by, with one rule taken out."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutating import Edit, Mutant, Patch, begins, condition, returned, statement

from penstock_operator import autoscaling, decision
from penstock_operator.autoscaling import _Evaluating, _Load
from penstock_operator.decision import _Deciding


def _mutant(history: str, name: str, where: Any, function: str, *edits: Edit) -> tuple[Mutant, str]:
    """The mutant, and the history that kills it with seed 0."""
    also = (decision,) if hasattr(decision, function) else ()
    return Mutant(0, name, (Patch(where, function, *edits, also=also),)), history


_ALL = (
    _mutant("within_the_band", "every_deviation_from_the_target_is_corrected", _Evaluating, "_evaluated", condition(
        "too_few", "now", ">", becomes="target > now",
    )),
    _mutant("short_peaks", "a_job_is_scaled_down_at_once", _Evaluating, "_down", condition("due_us", "<")),
    _mutant("short_peaks", "the_newest_measurement_decides", _Evaluating, "_window", statement(
        "used", "first", becomes="used = counted[-2:]",
    )),
    _mutant("hot_key", "what_did_not_help_is_tried_again", _Evaluating, "_judge", begins("return False")),
    _mutant("fixed_vertex", "what_did_not_help_is_forgotten", _Evaluating, "_up", condition("tried", "INEFFECTIVE_US")),
    _mutant("uneven_splits", "a_small_step_says_all", _Evaluating, "_note_in_vain", statement(
        "_unjudged", "last", becomes="self._changes['ineffective'] = Ineffective(parallelism=2, since_us=self._now_us)",
    )),
    _mutant("doubles_and_halves", "every_higher_parallelism_counts_as_in_vain", _Evaluating, "_judge", statement(
        "in_vain", "capacity", becomes="in_vain = True",
    )),
    _mutant("shared_slots", "every_subtask_has_a_processor_of_its_own", autoscaling, "_shared", statement(
        "worker", "share", becomes="found[f'{worker}/{vertex.counts.id}'] = [(vertex, share)]",
    )),
    _mutant("costlier_rows", "a_rescale_is_judged_for_ever", _Evaluating, "_judge", statement(
        "_changes", "after", becomes="pass",
    )),
    _mutant("backlog", "nobody_catches_up", _Load, "_growth", condition("_catch_up_us")),
    _mutant("jump", "what_is_read_counts_as_what_is_written", autoscaling, "_trend", returned(
        "slope", becomes="return 0.0, 0.0",
    )),
    _mutant("unmeasured", "holes_do_not_matter", _Evaluating, "_unbroken", condition("broken", becomes="False")),
    _mutant("refused", "a_refusal_is_no_answer", _Deciding, "_not_autoscaled", begins("return")),
    _mutant("dry_run", "a_dry_run_is_none", _Evaluating, "_rescaled", condition("dry_run")),
    _mutant("limits", "slots_do_not_matter", _Evaluating, "_most", condition("_spare")),
    _mutant("limits", "the_user_sets_no_limits", _Evaluating, "_up", statement(
        "most", "target", "wished", becomes="wished = target",
    )),
    _mutant("somebody_says_otherwise", "what_somebody_says_is_not_measured", autoscaling, "measured_status", condition(
        "instead_of",
    )),
)  # fmt: skip
MUTANTS = {mutant.name: (mutant, history) for mutant, history in _ALL}
