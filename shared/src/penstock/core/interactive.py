"""Whether somebody is there to read along: what is said and shown in a notebook or a shell of IPython."""

from __future__ import annotations

import sys
from typing import Any, Self

CELL_RAN_TWICE = "; in a notebook, a cell that ran twice declared it twice: run the cell of Pipeline(...) again"


def of_cells() -> str:
    """What to say, in a notebook only, of what is there twice."""
    return CELL_RAN_TWICE if shell() is not None else ""


def shell() -> Any:
    """The shell of IPython that this process is; None if it is none."""
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


class StatusLine:
    """A place below the cell of a notebook whose text is replaced."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._place = ""

    @classmethod
    def if_any(cls) -> Self | None:
        """One below the cell that runs; None where there is no notebook: a shell would print each text below the last."""
        found = shell()
        return cls(found.display_pub) if hasattr(found, "kernel") else None

    def show(self, place: str, text: str) -> None:
        """Let this be the text of a place, which is made if it is another one than before."""
        data, transient = {"text/plain": text}, {"display_id": place}
        self._publisher.publish(data, {}, transient=transient, update=place == self._place)
        self._place = place

    def clear(self) -> None:
        """Let it have none, if it has one."""
        if self._place:
            self.show(self._place, "")
