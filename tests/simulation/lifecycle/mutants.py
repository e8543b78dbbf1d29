"""The mutants that the histories must kill: what the operator decides by, with one rule taken out."""

from __future__ import annotations

from tests.simulation.mutating import Edit, Mutant, Patch, begins, condition, returned, statement

from penstock_operator.decision import _Deciding


def _mutant(seed: int, name: str, function: str, *edits: Edit) -> tuple[Mutant, int]:
    """The mutant, and a history that kills it: `python -m tests.simulation.lifecycle` finds others."""
    return Mutant(0, name, (Patch(_Deciding, function, *edits),)), seed


_ALL = (
    _mutant(0, "a_request_has_a_new_id_whenever_it_is_sent", "_ask", begins(
        "step = msgspec.structs.replace(step, request=self._new_id())",
    )),
    _mutant(0, "a_job_is_submitted_beside_the_one_that_runs", "_plan_running", condition(
        "deployed", "alive", becomes="True",
    )),
    _mutant(2, "what_a_job_has_left_is_not_handed_on", "_hand_on", condition("left", "state")),
    _mutant(2, "what_failed_to_start_is_tried_again", "_start_failed", condition("blamed")),
    _mutant(18, "what_failed_at_work_is_tried_again", "_ended_by_itself", condition("stable", "attempt")),
    _mutant(238, "a_submission_that_may_still_arrive_is_forgotten", "_settle_halted", condition("submitter")),
    _mutant(20, "a_submission_is_given_up_while_the_leader_has_it", "_settle_submission", begins(
        "if self._seen.answer.state == 'pending':\n"
        "    self._seen = replace(self._seen, answer=type(self._seen.answer)())",
    )),
    _mutant(0, "the_resource_goes_before_its_job", "_plan_deletion", condition("alive")),
    _mutant(11, "a_job_with_checkpoints_is_cancelled", "_has_own_checkpoint", returned(becomes="return False")),
    _mutant(11, "a_doubtful_state_is_gone_on_from", "_start_problem", condition("doubtful")),
    _mutant(4, "a_rollback_forgets_what_failed", "_start", condition("rollback", "failed", becomes="True")),
    _mutant(11, "a_request_counts_when_it_is_answered_only", "_settle_ending", condition(
        "job", "ended", becomes="answer.state == 'completed'",
    )),
    _mutant(2, "a_job_is_judged_by_the_one_before", "_settled", returned(
        "accepted_before", becomes="return self._status.step is None",
    )),
    _mutant(4, "another_parallelism_is_another_job", "_needs_new_job", returned(
        "_is_restart", becomes="return deployed is not None and (deployed.version != wanted.version or self._is_restart()"
        " or deployed.parallelism != wanted.parallelism)",
    )),
    _mutant(17, "savepoints_are_disposed_of_that_are_needed", "_superfluous", returned(
        "needed", becomes="return [one for one in taken if one in many or one in old]",
    )),
    _mutant(0, "periodic_savepoints_have_no_period", "_keep_savepoints", statement("periodic_at_us")),
    _mutant(0, "a_nonce_is_carried_out_again_and_again", "_start", statement(
        "nonce", "starting", "step", becomes="self._set(deployed=None, starting=starting,"
        " step=Step(kind='submit', request=job, why=why, since_us=self._now_us))",
    )),
    _mutant(2, "nothing_is_rolled_back", "_wanted", condition("rollback", "stable")),
    _mutant(2, "a_new_version_counts_as_stable_at_once", "_note_stability", condition(
        "stable", "_has_own_checkpoint", becomes="deployed.stable",
    )),
    _mutant(0, "who_is_refused_gives_up", "_refused", begins("return")),
    _mutant(2, "a_stop_waits_for_what_never_runs", "_is_hopeless", returned(becomes="return False")),
    _mutant(1, "a_savepoint_is_lost_from_view", "_record", begins("return")),
)  # fmt: skip
MUTANTS = {mutant.name: (mutant, seed) for mutant, seed in _ALL}
