"""Sources and sinks, one module per system: `from penstock.connectors import files, generate, iterables`.

Importing them is cheap: Polars, pyarrow and numpy are loaded when rows flow.
"""
