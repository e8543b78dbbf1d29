"""An optional field that records spell otherwise is null in silence, so the first records are asked for its name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.connectors import collecting, files, iterables
from penstock.connectors.kafka.avro_values import AvroValues
from penstock.connectors.kafka.decoding import JsonValues
from penstock.errors import closest
from penstock.formats.decoding import JsonDecoder
from penstock.formats.misspelt import misspelt_in_names, misspelt_in_records
from penstock.pipeline import Pipeline
from penstock.types import schema_of


@dataclass
class Buyer:
    name: str | None
    town: str | None = None


@dataclass
class Order:
    id: int
    amuont: float | None
    buyer: Buyer | None = None
    delay_min: int = 0
    price: float | None = None


FIELDS = schema_of(Order).fields
WRONG = {"id": 1, "amount": 2.5, "buyer": {"nmae": "ann"}, "delayMin": 3, "process": 1}
FOUND = {"amuont": "amount", "delay_min": "delayMin", "buyer.name": "nmae"}


def test_a_name_is_near_if_it_differs_in_a_slip_in_case_or_in_separators() -> None:
    """Names that only look alike are others, and so is what another field of the class means."""
    assert closest("ORDER_ID", ["id", "orderId"]) == "orderId"
    assert closest("_", ["-"]) is None
    assert misspelt_in_records(FIELDS, [WRONG]) == FOUND
    assert misspelt_in_names(FIELDS, ["id", "amount", "price", "delays"]) == {"amuont": "amount"}


def test_one_record_that_has_the_field_is_enough() -> None:
    """A null is a value; what is required or unknown alone is told of by others; what is no record tells nothing."""
    assert misspelt_in_records(FIELDS, [WRONG, {"amuont": None, "delay_min": 1, "buyer": {"name": None}}]) == {}
    assert misspelt_in_records(FIELDS, [{"idd": 1}, 7, None]) == {}


@pytest.mark.parametrize("fast", [True, False])
def test_json_is_looked_at_once(fast: bool) -> None:
    """Among the first records, bad ones left out; a block that has none is not the first."""
    decoder = JsonDecoder(schema_of(Order))
    assert not decoder.decode(b"").misspelt
    assert not decoder.decode(b"[1]").misspelt
    lines = [json.dumps(WRONG).encode(), b"" if fast else b"{"]
    assert decoder.decode(b"\n".join(lines)).misspelt == FOUND
    assert decoder.decode(b'{"id": 2, "amuont": 1.0}').misspelt == FOUND
    assert JsonValues(schema_of(Order), None).decode(lines)[0].misspelt == FOUND


def test_avro_is_known_by_the_writers_schema() -> None:
    """Which names its fields, whatever the records are."""
    writer = {"type": "record", "name": "R", "fields": [{"name": name, "type": "double"} for name in ("id", "amount")]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), {"id": 1.0, "amount": 1.0})
    assert AvroValues(schema_of(Order), None, json.dumps(writer)).decode([out.getvalue()])[0].misspelt == {
        "amuont": "amount"
    }
    assert not AvroValues(schema_of(Order), None, None).decode([])[0].misspelt


def _jsonl(path: Path) -> Any:
    path.write_text(json.dumps(WRONG))
    return files.Source(path, schema=Order, format="jsonl")


def _csv(path: Path) -> Any:
    path.write_text("id,amount\n1,2.5\n")
    return files.Source(path, schema=_Flat, format="csv")


def _parquet(path: Path) -> Any:
    parquet.write_table(pa.table({"id": [1], "amount": [2.5]}), path)
    return files.Source(path, schema=_Flat, format="parquet")


@dataclass
class _Flat:
    id: int
    amuont: float | None


@pytest.mark.parametrize("made", [_jsonl, _csv, _parquet, lambda _: iterables.Source([WRONG, WRONG], schema=Order)])
def test_a_run_says_so_at_its_end(made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And once in the log, with the class and what was probably meant."""
    p = Pipeline("misspelt")
    p.read(made(tmp_path / "in")).write(collecting.Sink())
    said = repr(p.run())
    assert said.count(".amuont is in none of the first records") == 1
    assert "warning: " in said
    assert "did you mean 'amount'" in said
    assert capsys.readouterr().err.count("did_you_mean=amount") == 1
