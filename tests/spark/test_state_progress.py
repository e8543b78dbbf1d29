"""How far event time has come: the rules of streaming, over splits that are read to an end."""

from __future__ import annotations

from penstock.core.times import MIN_WATERMARK
from penstock.spark.progress import Activity, Progress, SplitReport, combined, source_progress
from penstock.task.sources import SplitEntry


def split(watermark: int, *, finished: bool = False, idle: bool = False) -> SplitEntry:
    return SplitEntry("s", None, finished, watermark, idle, None)


def read(*entries: SplitEntry, archive: bool = False) -> list[SplitReport]:
    return [SplitReport(entry, 1, archive) for entry in entries]


def test_the_least_split_that_goes_on_decides():
    """One without rows holds back, an idle one does not, nor do those that are over or of an archive."""
    old = read(split(5, finished=True), archive=True)
    assert source_progress([*old, *read(split(30), split(20))], [split(1, finished=True)], 0).watermark == 20
    assert source_progress(read(split(30), split(MIN_WATERMARK)), (), MIN_WATERMARK).watermark == MIN_WATERMARK
    assert source_progress(read(split(30), split(MIN_WATERMARK, idle=True)), (), 0) == Progress(30, Activity.AWAKE)
    assert source_progress(read(split(10, idle=True), split(20, idle=True)), (), 0) == Progress(20, Activity.IDLE)


def test_where_all_splits_are_over_those_read_now_decide():
    """Not those of earlier runs, nor empty files; without any the source is where it was."""
    carried = [split(1, finished=True)]
    now = read(split(40, finished=True), split(30, finished=True), split(MIN_WATERMARK, finished=True))
    assert source_progress(now, carried, 0) == Progress(30, Activity.OVER)
    assert source_progress((), carried, 7) == Progress(7, Activity.OVER)


def test_event_time_never_goes_back():
    """What a savepoint had come to stands."""
    assert source_progress(read(split(30)), (), 50).watermark == 50


def test_the_least_input_that_goes_on_decides():
    """Inputs that are over hold nothing back while others go on; if all are idle the furthest counts."""
    over, idle, awake = Progress(1, Activity.OVER), Progress(20, Activity.IDLE), Progress(30, Activity.AWAKE)
    assert combined([over, idle, awake, Progress(40, Activity.AWAKE)]) == awake
    assert combined([over, idle, Progress(10, Activity.IDLE)]) == idle
    assert combined([over, Progress(2, Activity.OVER)]) == over
