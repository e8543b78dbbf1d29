"""What subtasks say of their progress is understood by leaders and views of other versions."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.coordination.cluster_view import TaskView
from penstock.core.times import MIN_WATERMARK
from penstock.protocol.messages import OperatorMetrics, SubtaskId, TaskProgress, TaskStatus

STATUS = TaskStatus(
    "job", "attempt", SubtaskId("v", 0), "running", metrics={"read": OperatorMetrics(rows_in=5, rows_out=4)},
    progress=TaskProgress(watermark=7, busy_us=3, bytes_in=10, records_behind=0),
)  # fmt: skip


def test_the_json_is_that_of_plain_dictionaries():
    """Older leaders look keys up by name, and sum what `records_behind` holds wherever it stands."""
    said = json.loads(msgspec.json.encode(STATUS))
    assert said["metrics"] == {
        "read": {
            "rows_in": 5, "rows_out": 4, "late_rows": 0, "bad_rows": 0, "state_bytes": 0, "failed_calls": 0,
            "forgotten_keys": 0, "lost_changes": 0,
        }
    }  # fmt: skip
    assert said["progress"] == {
        "watermark": 7, "busy_us": 3, "idle_us": 0, "blocked_us": 0, "bytes_in": 10, "bytes_out": 0, "state_bytes": 0,
        "records_behind": 0,
    }  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(STATUS), type=TaskStatus) == STATUS


@pytest.mark.parametrize("kind", [TaskStatus, TaskView])
def test_other_versions_say_less_and_more(kind: type[TaskStatus | TaskView]):
    """What is not said has its default; what this version does not know is passed over."""
    said = {
        "job": "j",
        "attempt": "a",
        "subtask": {"vertex": "v", "index": 0},
        "index": 0,
        "worker": "w",
        "state": "running",
        "metrics": {"read": {"rows_in": 5, "new": 1}},
        "progress": {"busy_us": 3, "new": {}},
    }
    found = msgspec.json.decode(msgspec.json.encode(said), type=kind)
    assert found.metrics == {"read": OperatorMetrics(rows_in=5)}
    assert found.progress == TaskProgress(busy_us=3)
    assert found.progress.watermark == MIN_WATERMARK
    assert found.progress.records_behind is msgspec.UNSET
