"""Runs a query in Flink SQL, by a Python that has `apache-flink`: `python nexmark_flink.py FILE`.

The file is JSON: the `configuration` of the environment, the `declarations` of the tables, the `query`, and the options
of the `sink` that is filled from it. `benchmarks.nexmark_sql` writes it.
"""

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment


def main() -> None:
    """Run it until the tables end."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for name, value in asked["configuration"].items():
        environment.get_config().set(name, value)
    for statement in asked["declarations"]:
        environment.execute_sql(statement)
    found = environment.sql_query(asked["query"])
    kinds = map(str, found.get_resolved_schema().get_column_data_types())
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
    environment.execute_sql(f"CREATE TABLE filled ({columns}) WITH ({asked['sink']})")
    found.execute_insert("filled").wait()


main()
