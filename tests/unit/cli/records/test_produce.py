"""`flowstone produce --file`: what becomes of each format, and what is said of input that is none."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.records import record_sources
from flowstone.cli.records.record_sources import Fields, Shape, format_of, read_csv, read_jsonl, read_lines

Call = Callable[..., str]
Prepare = Callable[..., None]

QUICK = ("--acks", "1")  # with all, librdkafka waits half a second for a producer id


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(call: Call, topic: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in call("consume", topic, "--json").splitlines()]


def test_a_json_object_per_line_is_a_record_byte_by_byte(call: Call, prepare: Prepare, tmp_path: Path) -> None:
    prepare("jsonl")
    file = write(tmp_path / "x.jsonl", '{"id": 1,  "name":"größe"}\n\n{"id": 2}\n')
    assert call("produce", "jsonl", *QUICK, "--file", file) == "stored 2 records\n"
    assert call("consume", "jsonl") == '{"id": 1,  "name":"größe"}\n{"id": 2}\n'


def test_fields_are_also_key_time_and_headers(call: Call, prepare: Prepare, tmp_path: Path) -> None:
    prepare("fields")
    file = write(tmp_path / "x.jsonl", '{"id":7,"at":"1970-01-01T00:00:05+00:00","kind":"new","none":null}\n')
    fields = ("--key-field", "id", "--timestamp-field", "at", "--header-field", "kind", "--header-field", "none")
    call("produce", "fields", *QUICK, "--file", file, *fields, "--header", "source=test")
    (record,) = read(call, "fields")
    assert (record["key"], record["timestamp"]) == ("7", 5000)
    assert record["headers"] == [
        {"name": "source", "value": "test"},
        {"name": "kind", "value": "new"},
        {"name": "none", "value": None},
    ]


def test_a_row_of_csv_is_an_object_with_the_names_of_the_first(call: Call, prepare: Prepare, tmp_path: Path) -> None:
    prepare("csv")
    file = write(tmp_path / "x.csv", '\ufeffid,note\r\n1,"two\nlines, ""quoted"""\r\n2,\r\n')
    assert call("produce", "csv", *QUICK, "--file", file, "--key-field", "id") == "stored 2 records\n"
    records = read(call, "csv")
    assert [record["key"] for record in records] == ["1", "2"]
    assert json.loads(str(records[0]["value"])) == {"id": "1", "note": 'two\nlines, "quoted"'}


def test_a_row_of_parquet_is_an_object_of_what_json_has(call: Call, prepare: Prepare, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    prepare("parquet")
    columns = {
        "id": [1, 2],
        "at": pyarrow.array([datetime(1970, 1, 1, 0, 0, 5), None], pyarrow.timestamp("ns")),
        "ratio": [float("nan"), 0.5],
        "blob": [b"\xff", None],
        "tags": [["a", "b"], []],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    assert (
        call("produce", "parquet", *QUICK, "--file", tmp_path / "x.parquet", "--key-field", "id")
        == "stored 2 records\n"
    )
    assert [json.loads(line) for line in call("consume", "parquet").splitlines()] == [
        {"id": 1, "at": "1970-01-01T00:00:05+00:00", "ratio": None, "blob": "/w==", "tags": ["a", "b"]},
        {"id": 2, "at": None, "ratio": 0.5, "blob": None, "tags": []},
    ]


def test_parquet_without_pyarrow_says_what_to_install(
    refused: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = write(tmp_path / "x.parquet", "")
    assert "pip install 'flowstone[arrow]'" in refused("produce", "any", "--file", file)


def test_standard_input_has_formats_too(call: Call, prepare: Prepare) -> None:
    prepare("piped-csv")
    assert call("produce", "piped-csv", *QUICK, "--format", "csv", input="a,b\n1,2\n") == "stored 1 record\n"
    assert call("consume", "piped-csv") == '{"a":"1","b":"2"}\n'


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.jsonl", '{"a":1}\n{"a"', "line 2 of x.jsonl is not JSON"),
        ("x.jsonl", '{"a":1}\n[1]\n', "line 2 of x.jsonl is JSON, but not an object in braces"),
        ("x.jsonl", '{"a":1}\n{"b":1}\n', "line 2 of x.jsonl has no field a"),
        ("x.csv", "a,b\n1,2\n3\n", "line 3 of x.csv has 1 fields, the first row has 2"),
        ("x.csv", 'a,b\n1,2\n"3', "line 3 of x.csv is not CSV"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(name: str, text: str, sentence: str) -> None:
    read = read_csv if format_of(name) == "csv" else read_jsonl
    records = read(io.BytesIO(text.encode()), name, Shape(Fields(key="a"), []))
    assert next(records).key == b"1"
    with pytest.raises(CommandError, match=sentence):
        next(records)


def test_what_came_before_something_wrong_is_stored(refused: Call, call: Call, prepare: Prepare) -> None:
    prepare("half-wrong")
    told = refused("produce", "half-wrong", "--format", "jsonl", input='{"a":1}\n{"a"\n')
    assert told.startswith("flowstone: line 2 of the input is not JSON")
    assert told.endswith("; the records before it are stored (1 record)\n")
    assert call("consume", "half-wrong") == '{"a":1}\n'


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--file", "x.doc"), "the name of x.doc does not tell its format: say --format lines|jsonl|csv|parquet"),
        (("--file", "nowhere.csv"), "cannot read nowhere.csv: No such file or directory"),
        (("--format", "xml"), "--format xml: expected lines, jsonl, csv, parquet"),
        (("--format", "parquet"), "Parquet is not read from standard input"),
        (("--key-field", "id"), "lines have no fields"),
        (("--format", "csv", "--key-separator", ":"), "--key-separator is for lines"),
        (("--acks", "2"), "--acks 2: expected all, 1, 0"),
        (("--header", "x"), "--header x: expected --header name=value"),
    ],
)
def test_options_that_make_no_sense_are_refused(refused: Call, options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused("produce", "any", *options)


def test_a_time_that_is_none_is_refused() -> None:
    records = read_jsonl(io.BytesIO(b'{"at":"noon"}'), "x.jsonl", Shape(Fields(timestamp="at"), []))
    with pytest.raises(CommandError, match="'noon' is not a time: expected milliseconds since 1970, or ISO 8601"):
        next(records)


def test_a_record_larger_than_the_topic_takes_is_said_with_the_way_out(
    refused: Call, call: Call, prepare: Prepare
) -> None:
    prepare("large")
    call("topic", "alter", "large", "--set", "max.message.bytes=1000")
    told = refused("produce", "large", input="small\n" + "x" * 2000 + "\n")
    assert "raise that with `flowstone topic alter large --set max.message.bytes=N`" in told


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_sources, "RECORD_BYTES_MAX", 10)
    records = read_lines(io.BytesIO(b"0123456789\n" + b"x" * 1000), "the input", b"", Shape(Fields(), []))
    with pytest.raises(CommandError, match="line 1 of the input is longer than 10 bytes"):
        list(records)
