"""Patterns as plans draw them; goldens of plans have more of them."""

from __future__ import annotations

from penstock import Pattern, Pipeline, col, count
from penstock.connectors import collecting, iterables
from penstock.functions.patterns.automaton import compiled
from penstock.functions.patterns.drawing import MOST_LINES, drawn
from penstock.graph.explain import explain_text
from penstock.graph.jobgraph import build_job_graph
from penstock.plan.logical import LogicalPlan
from penstock.plan.tree import plan_tree
from penstock.types import INT64, TIMESTAMP, Field, Schema

ROWS = Schema((Field("n", INT64), Field("at", TIMESTAMP)))
LINES = [
    "start -> 1 low",
    '1 low [col("n") < 1] -> followed by 2 high within 5s unless [col("n") > 9] comes',
    "2 high -> complete | next 2 high within 5s",
]
RISES = (
    Pattern.begin("low", col("n") < 1)
    .not_followed_by("top", col("n") > 9)
    .followed_by("high", within="5s", times=(1, None), repeated="next")
)


def plan() -> LogicalPlan:
    p = Pipeline("p")
    rows = p.read(iterables.Source([], schema=ROWS, event_time="at")).key_by("n")
    rows.match(RISES).select(n=count()).write(collecting.Sink())
    return p.plan


def test_both_plans_draw_the_positions_below_the_settings() -> None:
    for text in (plan_tree(plan()), explain_text(build_job_graph(plan(), 1), plan())):
        lines = [line.strip("│ ") for line in text.splitlines()]
        begin = lines.index("positions:") + 1
        assert lines[begin : begin + 3] == LINES
        assert lines[begin + 3].startswith(("state:", "columns:"))


def test_the_ways_of_a_regular_expression_stand_in_order_of_preference() -> None:
    p = Pipeline("p")
    query = """
        SELECT * FROM t MATCH_RECOGNIZE (
            PARTITION BY n ORDER BY at MEASURES COUNT(*) AS many
            PATTERN (A (B | C)* D?) DEFINE A AS A.n < 1, C AS C.n > 2
        )
    """
    p.sql(query, t=p.read(iterables.Source([], schema=ROWS, event_time="at"))).write(collecting.Sink())
    lines = [line.strip("│ ") for line in plan_tree(p.plan).splitlines()]
    begin = lines.index("positions:") + 1
    assert lines[begin : begin + 6] == [
        "start -> 4 A",
        '4 A [col("n") < 1] -> 2 B | 3 C | 1 D | complete',
        '3 C [col("n") > 2] -> 2 B | 3 C | 1 D | complete',
        "2 B -> 2 B | 3 C | 1 D | complete",
        "1 D -> complete",
        "state: rows until event time has passed them, and those of partial matches, for ever",
    ]


def test_large_patterns_are_drawn_in_part() -> None:
    whole = [*drawn(compiled(Pattern.begin("a", times=MOST_LINES - 1).group))]
    assert len(whole) == MOST_LINES
    assert whole[-1] == f"{MOST_LINES - 1} a -> complete"
    part = [*drawn(compiled(Pattern.begin("a", times=MOST_LINES).group))]
    assert part == [*whole[:-1], f"{MOST_LINES - 1} a -> followed by {MOST_LINES} a", "and 1 more"]
