"""How a process of Penstock ends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn


def leave(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end the process with what it returns, without taking the interpreter apart.

    Native threads of the store's client (obstore) come back into Python after their answer was handed over. One that
    comes while the interpreter is being finalized is ended by it, inside Rust, which aborts the whole process
    (CPython before 3.14). All our resources are closed by then, so nothing is left to finalize.
    """
    try:
        code = main() or 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more
        code = code or 1
    os._exit(code)
