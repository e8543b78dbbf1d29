"""Benchmarks of the data path: the real engine, embedded, beside Polars and DuckDB with the same work on the same core.

`python -m benchmarks` (`make bench`) runs them. `cases` says what is measured, `child` runs one measurement in a process
of its own, `report` prints and keeps the figures, `sinks` counts what is not to be written.
"""
