"""What a session is asked, and what is made of its errors."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock.errors import ExternalError
from penstock.spark.session import default_parallelism


class Dead:
    """A session whose JVM was killed."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 (the name that PySpark has)
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_jvm_that_died_is_an_error_after_which_steps_are_repeated() -> None:
    """Only errors of the outside make a job in steps open another session."""
    with pytest.raises(ExternalError, match=r"Spark does not answer.*refused"):
        default_parallelism(cast("Any", Dead()))
