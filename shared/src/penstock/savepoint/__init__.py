"""Savepoints as tables: what a job's operators hold, as Polars frames, and back into a savepoint after a change.

    from penstock import savepoint

    sp = savepoint.read("backup/monday")  # penstock savepoint JOB --to backup/monday
    totals = sp.table("totals", "total")  # uid and state: the key columns, and `value`
    edited = sp.edit()
    edited.replace("totals", "total", totals.with_columns(value=0))
    edited.write("backup/reset")  # penstock submit FILE --from-savepoint backup/reset

No code of the pipeline is needed: a savepoint describes its state. `penstock state` reads it with the same code.
"""

from penstock.savepoint.editing import EditedSavepoint
from penstock.savepoint.operators import OperatorState
from penstock.savepoint.reading import Savepoint, read

__all__ = ["EditedSavepoint", "OperatorState", "Savepoint", "read"]
