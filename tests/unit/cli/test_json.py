"""`--json`, command by command: stable names, one document or one per line, failures included."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flowstone

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]
Prepare = Callable[..., None]

QUICK = ("--acks", "1")  # with all, librdkafka waits half a second for a producer id


def documents(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_topics_life_is_told_in_documents(call: Call) -> None:
    created = call("topic", "create", "j-life", "--partitions", 2, "--config", "retention.ms=1000", "--json")
    assert documents(created) == [{"topic": "j-life", "partitions": 2}]
    assert {"topic": "j-life", "partitions": 2} in documents(call("topic", "list", "--json"))
    (described,) = documents(call("topic", "describe", "j-life", "--json"))
    assert described["settings"] == {"retention.ms": "1000"}
    partition = {"first_offset": 0, "next_offset": 0, "leader": 1, "replicas": [1], "in_sync_replicas": [1]}
    on_disk = ("directory", "size_bytes", "segments", "oldest_timestamp_ms", "growth_bytes_per_second")
    partition |= dict.fromkeys(on_disk)  # told over HTTP only, which is off
    assert described["partitions"] == [{"partition": 0, **partition}, {"partition": 1, **partition}]
    altered = call("topic", "alter", "j-life", "--partitions", 3, "--unset", "retention.ms", "--json")
    assert documents(altered) == [{"topic": "j-life", "partitions": 3, "set": {}, "unset": ["retention.ms"]}]
    assert documents(call("topic", "delete", "j-life", "--yes", "--json")) == [{"topic": "j-life"}]


def test_the_count_of_what_was_stored_is_a_document(call: Call, prepare: Prepare) -> None:
    prepare("j-stored")
    (told,) = documents(call("produce", "j-stored", *QUICK, "--json", input="a\nb\n"))
    assert told == {"topic": "j-stored", "stored": 2, "interrupted": False}


def test_a_record_is_an_object_and_bytes_that_are_no_text_are_base64(call: Call, prepare: Prepare) -> None:
    prepare("j-records", ("k", "größe", 1000), (None, b"\xff", 2000))
    record = {"topic": "j-records", "partition": 0, "headers": []}
    assert documents(call("consume", "j-records", "--json")) == [
        {**record, "offset": 0, "timestamp": 1000, "key": "k", "value": "größe"},
        {**record, "offset": 1, "timestamp": 2000, "key": None, "value_base64": "/w=="},
    ]


def test_values_that_are_json_are_read_and_others_said_to_be_none(call: Call, prepare: Prepare) -> None:
    prepare("j-values", (None, '{"a":[1]}', 1000), (None, "text", 1000))
    first, second = documents(call("consume", "j-values", "--json", "--decode", "json"))
    assert first["value"] == {"a": [1]}
    assert second["value"] == "text"
    assert second["value_error"].startswith("not JSON: ")


def test_values_that_are_json_are_indented_for_people(run: Run, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("j-people", (None, '{"a":[1]}', 1000), (None, "text", 1000))
    result = run("consume", "j-people", "--decode", "json", "--with", "offset", "--bootstrap", broker.bootstrap)
    assert result.stdout == '0\t{\n  "a": [\n    1\n  ]\n}\n1\ttext\n'
    assert result.stderr == "flowstone: 1 value printed as text, being no JSON\n"


def test_a_failure_is_a_document_on_standard_error(run: Run, broker: flowstone.Broker) -> None:
    result = run("consume", "j-nowhere", "--json", "--bootstrap", broker.bootstrap)
    assert (result.returncode, result.stdout) == (1, "")
    (told,) = documents(result.stderr)
    assert list(told) == ["error"]
    assert told["error"].startswith("there is no topic j-nowhere")


def test_batches_and_records_of_a_file_are_documents(run: Run, call: Call, prepare: Prepare, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with flowstone.Broker(data=str(data)) as broker:
        run("topic", "create", "dumped", "--bootstrap", broker.bootstrap)
        run("produce", "dumped", *QUICK, "--key-separator", ":", "--bootstrap", broker.bootstrap, input="k:v\n")
    batch, record = documents(run("log", "dump", data / "dumped-0", "--records", "--json").stdout)
    assert (batch["batch"]["base_offset"], batch["batch"]["records"], batch["batch"]["codec"]) == (0, 1, "none")
    assert (record["record"]["key_base64"], record["record"]["value_base64"]) == ("aw==", "dg==")

    (verified,) = documents(run("log", "verify", data, "--topic", "dumped", "--json").stdout)
    assert verified == {
        "topic": "dumped",
        "partition": 0,
        "good": True,
        "records": 1,
        "segments": 1,
        "first_offset": 0,
        "next_offset": 1,
        "damages": [],
        "bad_indexes": [],
        "unfinished_write": None,
    }


def test_damage_and_its_repair_are_documents(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with flowstone.Broker(data=str(data)) as broker:
        run("topic", "create", "hurt", "--bootstrap", broker.bootstrap)
        run("produce", "hurt", *QUICK, "--bootstrap", broker.bootstrap, input="value\n")
    log = data / "hurt-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes().replace(b"value", b"VALUE"))
    dumped = documents(run("log", "dump", log, "--json").stdout)
    assert [list(each) for each in dumped] == [["damage"]]
    report, repaired = documents(
        run("log", "repair", data, "--topic", "hurt", "--partition", 0, "--yes", "--json").stdout
    )
    assert [(each["first_offset"], each["next_offset"]) for each in report["damages"]] == [(0, 1)]
    assert repaired == {"repaired": {str(log): f"{log}.damaged"}}
