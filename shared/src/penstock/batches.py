"""What flows along a chain: Polars frames with the columns of the stream's schema and, hidden, their event time.

`EVENT_TIME` is an Int64 column (microseconds since the epoch) that is there exactly when the stream has event time; a
filter or a sort of the frame so carries the event times along. Column names with two leading underscores are reserved
for such purposes (`Schema` refuses them), and are never visible to user code.
"""

from __future__ import annotations

from typing import Final

EVENT_TIME: Final = "__event_time"
"""Int64: event time of the row."""
KEY_GROUP: Final = "__key_group"
"""UInt16 or wider: key group of the row; only inside operators and snapshots."""
