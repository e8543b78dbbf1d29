"""The SQL of pages is run, and what they show is what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tools import sql_pages

from penstock.embedded import EmbeddedSettings, run_pipeline
from penstock.errors import PenstockError
from penstock.loading import load_pipeline
from penstock.plan.building.rows import Rows
from penstock.plan.logical import LogicalPlan, ancestors
from penstock.sql.parsing import statements
from penstock.sql.programs import Session
from penstock.sql.text import SqlText

ROOT = Path(__file__).parents[3]
PAGE = """\
<!-- file: orders.jsonl -->
```text
{"id": 1, "price": 2.5}
```

```sql
SELECT price * 2 AS doubled FROM read_jsonl('orders.jsonl');
```
"""


KAFKA = "WITH ('connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'b:9092', 'format' = '{}')"
TABLES = f"""
CREATE TABLE a (id BIGINT, k STRING, x DOUBLE, tags ARRAY<STRING>, ts TIMESTAMP(3), WATERMARK FOR ts AS ts)
{KAFKA.format("json")};
CREATE TABLE b (id BIGINT, k STRING, y DOUBLE, at TIMESTAMP(3), WATERMARK FOR at AS at) {KAFKA.format("json")};
CREATE TABLE c (k STRING, z DOUBLE, PRIMARY KEY (k) NOT ENFORCED) {KAFKA.format("debezium-json")};
CREATE VIEW w AS SELECT k, window_start, window_end, COUNT(*) AS n
FROM TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' HOUR) GROUP BY k, window_start, window_end"""
SOON = "b.at BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR"
KINDS = {
    "append": (
        "SELECT id FROM a WHERE x > 1",
        "SELECT id FROM a UNION ALL SELECT id FROM b",
        "SELECT t FROM a CROSS JOIN UNNEST(tags) AS u (t)",
        "SELECT * FROM w",
        "SELECT DISTINCT k FROM a",
        "SELECT k FROM a UNION SELECT k FROM b",
        "SELECT a.id FROM a JOIN b ON a.id = b.id",
        f"SELECT a.id FROM a LEFT JOIN b ON a.id = b.id AND {SOON}",
        "SELECT l.n FROM w AS l LEFT JOIN w AS r ON l.window_start = r.window_start AND l.window_end = r.window_end",
        "SELECT a.id FROM a LEFT JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.k = b.k",
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.id = b.id)",
        "SELECT id FROM a WHERE id IN (SELECT id FROM b)",
        f"SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.id = b.id AND {SOON})",
        "SELECT k FROM w QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n) = 1",
        "SELECT SUM(x) OVER (PARTITION BY k ORDER BY ts) FROM a",
        "SELECT id, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) FROM a",
        "SELECT id FROM a ORDER BY ts, x DESC",
        "SELECT n FROM w ORDER BY window_end, k",
    ),
    "updates": (
        "SELECT k, COUNT(*) FROM a GROUP BY k",
        "SELECT COUNT(*) FROM a",
        "SELECT k, COUNT(*) FROM a GROUP BY ROLLUP (k)",
        "SELECT k FROM c",
        "SELECT DISTINCT z FROM c",
        "SELECT a.id FROM a LEFT JOIN b ON a.id = b.id",
        "SELECT a.id FROM a JOIN c ON a.k = c.k",
        "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM c WHERE a.k = c.k)",
        "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.id = b.id)",
        "SELECT id FROM a WHERE id NOT IN (SELECT id FROM b)",
        "SELECT id FROM a QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY x) <= 3",
        "SELECT id FROM a ORDER BY x LIMIT 3",
        "SELECT SUM(x) OVER (PARTITION BY k ORDER BY x) FROM a",
        "SELECT RANK() OVER (PARTITION BY k ORDER BY ts) FROM a",
        "SELECT id FROM a INTERSECT SELECT id FROM b",
        "SELECT id FROM a EXCEPT SELECT id FROM b",
        "SELECT id, (SELECT MAX(y) FROM b) FROM a",
    ),
}
"""What `docs/sql-queries.md` says of the results of clauses over tables without an end."""


@pytest.mark.parametrize(("kind", "query"), [(kind, query) for kind, queries in KINDS.items() for query in queries])
def test_a_result_is_of_the_kind_that_the_page_says(kind: str, query: str) -> None:
    """Also its state: what is not bounded by the watermark has the time to live that SET gives."""
    session = Session(LogicalPlan("kinds", state_ttl_us=7_000_000))
    found: list[Rows] = []
    for text in (TABLES, query):
        for part in statements(SqlText(text)):
            session.execute(SqlText(text), part, found.append)
    [rows] = found
    assert ("append" if rows.node.mode == "append" else "updates") == kind
    if kind == "updates":
        keeping = [
            node for node in (rows.node, *ancestors(rows.node)) if node.traits.keeps_state and node.verb != "read"
        ]
        assert {node.traits.ttl_us for node in keeping} == {7_000_000}


@pytest.mark.parametrize("page", sql_pages.PAGES)
def test_what_a_page_shows_is_what_its_sql_prints(page: str) -> None:
    """`python -m tools.sql_pages` writes it anew."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert sql_pages.rewritten(text) == text, "look at what has changed: python -m tools.sql_pages"


def test_the_pipelines_of_the_readme_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's and SQL's write the same rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [python], [sql] = (re.findall(rf"^```{kind}\n(.*?)^```$", text, re.M | re.S) for kind in ("python", "sql"))
    (tmp_path / "my_departures.py").write_text(python)
    (tmp_path / "my_departures.sql").write_text(sql)
    written: list[list[str]] = []
    for kind, folder in (("py", "out/my-departures"), ("sql", "out/my-departures-sql")):
        pipeline = load_pipeline(f"my_departures.{kind}", {})
        run_pipeline(pipeline, EmbeddedSettings(durable=False), directory=None, resume=False)
        lines = [line for part in Path(folder).glob("part-*") for line in part.read_text().splitlines()]
        written.append(sorted(str(sorted(json.loads(line).items())) for line in lines))
    assert written[0] == written[1]
    assert len(written[0]) > 1000


def test_output_is_written_behind_a_block_and_replaced_where_it_is_another() -> None:
    """Rows, and errors as well."""
    shown = sql_pages.rewritten(PAGE)
    assert "│ 5.0     │" in shown
    assert sql_pages.rewritten(shown.replace("5.0", "6.0")) == shown
    assert "error: <sql>:1:8: there is no column 'prise'" in sql_pages.rewritten(PAGE.replace("price * 2", "prise"))


def test_a_block_that_prints_nothing_has_no_output() -> None:
    """Statements of later blocks find what it has declared."""
    declared = "```sql\nCREATE VIEW v AS SELECT 1 AS one;\n```\n"
    assert sql_pages.rewritten(f"{declared}\n```text\nrows\n```\n") == declared
    assert "│ 1   │" in sql_pages.rewritten(f"{declared}\n```sql\nSELECT one FROM v;\n```\n")


def test_a_block_that_is_not_run_is_parsed() -> None:
    """So that it is spelled as SQL is."""
    block = "<!-- not run: it needs a broker -->\n```sql\nINSERT INTO nowhere SELECT 1;\n```\n"
    assert sql_pages.rewritten(block) == block
    with pytest.raises(PenstockError, match="INSERD"):
        sql_pages.rewritten(block.replace("INSERT", "INSERD"))
