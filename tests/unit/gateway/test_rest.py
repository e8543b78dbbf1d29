"""The paths of Flink's SQL Gateway: sessions, statements, pages, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_gateway import small_gateway, until

from penstock import __version__
from penstock.gateway import documents

NOBODY = "6a6a6a6a-0000-0000-0000-000000000000"
ROWS = [{"id": n, "price": n * 1.5, "name": None if n == 2 else f"n{n}"} for n in range(4)]
TEXT = {"type": "VARCHAR", "nullable": True, "length": 2_147_483_647}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


TABLE = (
    "CREATE TABLE prices (id BIGINT NOT NULL, price DOUBLE, name STRING, dear AS price > 2, "
    "PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'filesystem', 'path' = 'rows.jsonl', 'format' = 'json')"
)


def filled(name: str) -> str:
    return (
        f"CREATE TABLE {name} (id BIGINT, price DOUBLE) "
        f"WITH ('connector' = 'filesystem', 'path' = '{name}', 'format' = 'json', 'existing' = 'replace')"
    )


def written(folder: Path) -> list[Any]:
    lines = [line for file in folder.rglob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: row["id"])


async def test_versions_and_sessions() -> None:
    async with small_gateway() as gateway:
        for version in ("", "/v1", "/v2", "/v3"):
            assert await gateway.get(f"{version}/info") == {"productName": "Penstock", "version": __version__}
            assert await gateway.get(f"{version}/api_versions") == {"versions": ["V1", "V2", "V3"]}
        properties = {"jobmanager.rpc.address": "here", "pipeline.name": "it's", "sql-client.verbose": "true"}
        opened = await gateway.post("/v1/sessions", {"properties": {**properties, "pipeline.name": "mine"}})
        path = f"/v1/sessions/{opened['sessionHandle']}"
        assert (await gateway.get(path))["properties"] == {**properties, "pipeline.name": "mine"}
        assert await gateway.post(f"{path}/heartbeat") == {}
        assert await gateway.post(f"{path}/configure-session", {"statement": TABLE}) == {}
        assert (
            await gateway.post(f"{path}/configure-session", {"statement": "SET 'table.exec.state.ttl' = '1 d'"}) == {}
        )
        assert (await gateway.get(path))["properties"]["table.exec.state.ttl"] == "1 d"
        assert await gateway.delete(path) == {"status": "CLOSED"}
        assert "does not exist" in (await gateway.get(path, 500))["errors"][1]
        refused = await gateway.post("/sessions", {"properties": properties}, 500)
        assert '"it\'s" is no name' in refused["errors"][1]
        refused = await gateway.post("/sessions", {"properties": {"table.exec.mini-batch.enabled": "true"}}, 500)
        assert "there is no setting 'table.exec.mini-batch.enabled'" in refused["errors"][1]
        refused = await gateway.post("/sessions", {"properties": {"execution.runtime-mode": "BATCH"}}, 500)
        assert "is not needed" in refused["errors"][1]


async def test_statements_that_declare_and_show(folder: Path) -> None:
    async with small_gateway() as gateway:
        operation = await gateway.begin(TABLE)
        page = await gateway.page(operation)
        assert page["resultKind"] == "SUCCESS"
        assert page["isQueryResult"] is False
        assert "jobID" not in page
        assert page["results"] == {
            "columns": [{"name": "result", "logicalType": TEXT, "comment": None}],
            "rowFormat": "JSON",
            "data": [{"kind": "INSERT", "fields": ["OK"]}],
        }
        await gateway.run("CREATE VIEW dear AS SELECT id FROM prices WHERE dear")
        assert await gateway.run("SHOW TABLES") == [["dear"], ["prices"]]
        assert await gateway.run("SHOW VIEWS;") == [["dear"]]
        assert ["ABS"] in await gateway.run("SHOW FUNCTIONS LIKE 'A%'")
        assert await gateway.run("DESCRIBE PRICES") == [
            ["id", "BIGINT", False, "PRI(id)", None, None],
            ["price", "DOUBLE", True, None, None, None],
            ["name", "STRING", True, None, None, None],
            ["dear", "BOOLEAN", True, None, "AS price > 2", None],
        ]
        assert await gateway.run("DESCRIBE dear") == [["id", "BIGINT", False, None, None, None]]
        await gateway.run("DROP VIEW dear")
        assert await gateway.run("SHOW TABLES") == [["prices"]]
        ((tree,),) = await gateway.run("EXPLAIN SELECT name, COUNT(*) FROM prices GROUP BY name")
        assert "source: files" in tree
        ((graph,),) = await gateway.run("EXPLAIN JSON_EXECUTION_PLAN SELECT id FROM prices")
        assert json.loads(graph)["vertices"]
        assert await gateway.run("SET") == []
        await gateway.run("SET 'pipeline.name' = 'named'")
        await gateway.run("SET 'sql-client.execution.result-mode' = 'tableau'")
        assert await gateway.run("SET") == [
            ["pipeline.name", "named"], ["sql-client.execution.result-mode", "tableau"]
        ]  # fmt: skip
        await gateway.run("RESET 'sql-client.execution.result-mode'")
        assert await gateway.run("SET") == [["pipeline.name", "named"]]
        await gateway.run("RESET")
        assert await gateway.run("SET") == []


async def test_pages_may_be_asked_for_again(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        operation = await gateway.begin("SELECT id, name FROM prices ORDER BY id DESC")
        first = await gateway.page(operation)
        assert first["resultType"] == "PAYLOAD"
        assert first["isQueryResult"]
        assert len(first["jobID"]) == 32
        assert [row["fields"] for row in first["results"]["data"]] == [[3, "n3"], [2, None], [1, "n1"], [0, "n0"]]
        assert await gateway.page(operation) == first
        assert first["nextResultUri"] == f"{operation}/result/1?rowFormat=JSON"
        last = await gateway.get(first["nextResultUri"])
        assert last["resultType"] == "EOS"
        assert last["results"]["data"] == []
        assert "nextResultUri" not in last
        assert await gateway.get(first["nextResultUri"]) == last
        assert await gateway.page(operation) == first
        refused = await gateway.get(f"{operation}/result/2", 500)
        assert "Expecting token to be 1 or 0, but found 2." in refused["errors"][1]
        texts = await gateway.get(f"{operation.replace('v3', 'v2')}/result/0?rowFormat=plain_text")
        assert texts["results"]["data"][1] == {"kind": "INSERT", "fields": ["2", None]}
        assert texts["nextResultUri"] == f"{operation.replace('v3', 'v2')}/result/1?rowFormat=PLAIN_TEXT"
        old = await gateway.get(f"{operation.replace('v3', 'v1')}/result/0")
        assert old["nextResultUri"] == f"{operation.replace('v3', 'v1')}/result/1"
        assert await gateway.get(f"{operation}/status") == {"status": "FINISHED"}
        assert await gateway.delete(f"{operation}/close") == {"status": "CLOSED"}
        assert "Can not find" in (await gateway.get(f"{operation}/status", 500))["errors"][1]


async def test_final_rows_of_tables_that_end(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        assert sorted(await gateway.run("SELECT dear, COUNT(*) AS n FROM prices GROUP BY dear")) == [
            [False, 2],
            [True, 2],
        ]
        assert await gateway.run("SELECT id FROM prices WHERE id > 9") == []
        assert await gateway.run("SELECT id FROM prices ORDER BY price DESC LIMIT 1") == [[3]]
        assert await gateway.run("VALUES (1, 'a')") == [[1, "a"]]


async def test_insert_into_is_a_job_that_outlives_its_operation(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        await gateway.run(filled("out"))
        operation = await gateway.begin("INSERT INTO out SELECT id, price FROM prices")
        page = await gateway.page(operation)
        assert page["results"]["columns"] == [{"name": "job id", "logicalType": TEXT, "comment": None}]
        job = page["jobID"]
        assert page["results"]["data"] == [{"kind": "INSERT", "fields": [job]}]
        assert not page["isQueryResult"]
        assert await gateway.delete(f"{operation}/close") == {"status": "CLOSED"}
        await until(lambda: gateway.sessions.jobs.rows()[0][2] == "FINISHED")
        assert [row["id"] for row in written(folder / "out")] == [0, 1, 2, 3]
        assert await gateway.run("SHOW JOBS") == [[job, "sql-gateway", "FINISHED", "2026-01-01T00:00:00.000Z"]]
        await gateway.run("STOP JOB '" + job + "'")
        assert "there is no job 'x'" in await gateway.refused("STOP JOB 'x'")


async def test_inserts_are_waited_for_if_that_is_set(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        await gateway.run(filled("out"))
        await gateway.run("SET 'table.dml-sync' = 'true'")
        await gateway.run("INSERT INTO out SELECT id, price FROM prices", executionConfig={"pipeline.name": "filling"})
        assert len(written(folder / "out")) == 4
        assert [row[1:3] for row in await gateway.run("SHOW JOBS")] == [["filling", "FINISHED"]]
        assert "is true or false" in await gateway.refused("SET 'table.dml-sync' = 'maybe'")


async def test_a_statement_set_in_one_statement_or_in_several(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        await gateway.run("SET 'table.dml-sync' = 'true'")
        for name in ("one", "two"):
            await gateway.run(filled(name))
        inserts = [f"INSERT INTO {name} SELECT id, price FROM prices;" for name in ("one", "two")]
        ((job,),) = await gateway.run("EXECUTE STATEMENT SET BEGIN " + " ".join(inserts) + " END;")
        assert len(job) == 32
        assert written(folder / "one") == written(folder / "two") != []
        assert "'END' statement should be used after" in await gateway.refused("END;")
        assert await gateway.run("begin statement set;") == [["OK"]]
        assert await gateway.run(f"{inserts[0]} -- and a comment") == [["OK"]]
        assert "there is no table 'three'" in await gateway.refused("INSERT INTO three SELECT id, price FROM prices")
        assert "Only 'INSERT' statement is allowed" in await gateway.refused("SHOW TABLES")
        ((other,),) = await gateway.run("END;")
        assert other != job
        assert len(gateway.sessions.jobs.rows()) == 2
        await gateway.run("BEGIN STATEMENT SET")
        assert await gateway.run("END") == [["OK"]]


async def test_create_table_as_declares_and_is_a_job(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        await gateway.run("SET 'table.dml-sync' = 'true'")
        made = (
            "CREATE TABLE IF NOT EXISTS dear WITH ('connector' = 'filesystem', 'path' = 'dear', 'format' = 'json') "
            "AS SELECT id, price FROM prices WHERE dear"
        )
        refused = await gateway.post(f"/v3/sessions/{gateway.session}/configure-session", {"statement": made}, 500)
        assert "Unsupported statement for configuring session" in refused["errors"][1]
        assert "there is no column 'nosuch'" in await gateway.refused(made.replace("id, price", "nosuch"))
        assert await gateway.run("SHOW TABLES") == [["prices"]]
        ((job,),) = await gateway.run(made)
        assert [row[0] for row in await gateway.run("SHOW JOBS")] == [job]
        assert [row["id"] for row in written(folder / "dear")] == [2, 3]
        assert await gateway.run(made) == [["OK"]]  # it is there already
        assert sorted(await gateway.run("SELECT id FROM dear")) == [[2], [3]]
        await gateway.run("INSERT INTO dear SELECT id, price FROM prices WHERE id = 0")
        assert [row["id"] for row in written(folder / "dear")] == [0, 2, 3]
        ((tree,),) = await gateway.run("EXPLAIN " + made.replace("dear WITH", "other WITH"))
        assert "sink: files" in tree


async def test_wrong_statements_are_told_with_their_place(folder: Path) -> None:
    async with small_gateway() as gateway:
        assert "SqlError: <sql>:1:15: there is no table 'nosuch'" in await gateway.refused("SELECT * FROM nosuch")
        assert "there is no setting 'a'" in await gateway.refused("SET 'a' = 'b'")
        assert "this text has 2 statements" in await gateway.refused("SELECT 1; SELECT 2")
        assert "this text has 0 statements" in await gateway.refused(" ;")
        assert "executionConfig: there is no setting" in await gateway.refused("SELECT 1", executionConfig={"a": "b"})
        assert "executionConfig is for queries" in await gateway.refused(TABLE, executionConfig={"pipeline.name": "b"})
        assert "SHOW CATALOGS" in await gateway.refused("SHOW CATALOGS")
        await gateway.run(TABLE)
        operation = await gateway.begin("SELECT CAST(name AS INT) FROM prices")
        page = await gateway.page(operation)
        while "errors" not in page:
            page = (await gateway.http.get(page["nextResultUri"])).json()
        assert await gateway.get(f"{operation}/status") == {"status": "ERROR"}
        await gateway.run(filled("out"))
        operation = await gateway.begin("INSERT INTO out SELECT id, CAST(name AS DOUBLE) FROM prices")
        handle = operation.rpartition("/")[2]
        await until(lambda: gateway.found.operation(handle).status == "ERROR")
        page = await gateway.page(operation)
        while "errors" not in page:
            page = (await gateway.http.get(page["nextResultUri"])).json()
        assert [row[2] for row in gateway.sessions.jobs.rows()] == ["FAILED"]


async def test_requests_that_are_none() -> None:
    async with small_gateway() as gateway:
        session = f"/v3/sessions/{gateway.session}"
        assert await gateway.get("/v3/nosuch", 404) == {"errors": ["Not found: /v3/nosuch"]}
        assert await gateway.get("/v4/info", 404) == {"errors": ["Not found: /v4/info"]}
        assert await gateway.delete("/v3/sessions", 404) == {"errors": ["Not found: /v3/sessions"]}
        for path in ("/v3/sessions/me", f"{session}/operations/me/status"):
            assert "Cannot resolve path parameter" in (await gateway.get(path, 400))["errors"][0]
        assert "does not exist" in (await gateway.get(f"/v3/sessions/{NOBODY}", 500))["errors"][1]
        assert "Can not find" in (await gateway.get(f"{session}/operations/{NOBODY}/status", 500))["errors"][1]
        assert "did not match expected format" in (await gateway.post("/sessions", {"x": 1}, 400))["errors"][0]
        for document in ({}, {"statement": 7}, [], {"statement": "SELECT 1", "executionTimeout": "1"}):
            assert (
                "ExecuteStatementRequestBody"
                in (await gateway.post(f"{session}/statements", document, 400))["errors"][0]
            )
        timed = {"statement": "SET 'pipeline.name' = 'a'", "executionTimeout": 5}
        for path in ("statements", "configure-session"):
            assert "timeout mechanism" in (await gateway.post(f"{session}/{path}", timed, 500))["errors"][0]
        for statement in ("SELECT 1", "SET", "SHOW TABLES"):
            refused = await gateway.post(f"{session}/configure-session", {"statement": statement}, 500)
            assert "Unsupported statement for configuring session" in refused["errors"][1]
        operation = await gateway.begin("SELECT 1")
        assert "(token)" in (await gateway.get(f"{operation}/result/x", 400))["errors"][0]
        assert "rowFormat is" in (await gateway.get(f"{operation}/result/0?rowFormat=XML", 400))["errors"][0]
        large = await gateway.http.post("/sessions", content=b" " * (documents.MAX_BODY_BYTES + 1))
        assert large.status_code == 413
        for path in ("materialized-tables/a.b.c/refresh", "scripts"):
            assert (await gateway.post(f"{session}/{path}", {}, 501))["errors"][0].startswith(f"{session}/{path}: ")
        assert "workflow" in (await gateway.post("/v3/workflow/embedded-scheduler/create", {}, 501))["errors"][0]


async def test_completion(folder: Path) -> None:
    async with small_gateway() as gateway:
        await gateway.run(TABLE)
        asked = {"statement": "SELECT pri FROM prices", "position": 10}
        path = f"/v3/sessions/{gateway.session}/complete-statement"
        answer = await gateway.http.request("GET", path, json=asked)
        assert answer.json()["candidates"] == ["price"]
        answer = await gateway.http.request("GET", path, json={"statement": "SELECT id FROM p", "position": 16})
        assert answer.json()["candidates"] == ["prices"]
