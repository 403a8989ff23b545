"""`flowstone sql`: topics as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import flowstone
from flowstone.errors import ErrorCode
from tests.support.transactional_records import ABORTED, COMMITTED, OPEN, TransactionalWriter

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]
Prepare = Callable[..., None]

# A second apart, from the first second of 1970 on.
ORDERS = [
    (f"k{number}", json.dumps({"customer": "ab"[number % 2], "price": number}), 1000 * (number + 1))
    for number in range(6)
]


def rows(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_topic_is_a_table_and_its_json_is_asked_for_fields(call: Call, prepare: Prepare) -> None:
    prepare("s_orders", *ORDERS)
    query = (
        "select value->>'customer' as who, sum((value->>'price')::int) as total from s_orders group by all order by 1"
    )
    assert call("sql", query) == "who  total\na    6\nb    9\n"


def test_rows_are_documents_with_json(call: Call, prepare: Prepare) -> None:
    prepare("s_rows", ("k", "v", 1500))
    (row,) = rows(call("sql", "select * from s_rows", "--json"))
    assert row == {
        "key": "k",
        "value": "v",
        "topic": "s_rows",
        "partition": 0,
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.500000+00:00",
        "timestampType": 0,
        "headers": None,
    }


def test_values_that_json_lacks_become_text_or_null(call: Call) -> None:
    query = "select 'nan'::double as a, 1.50 as b, date '2026-01-31' as c, [1, null] as d, {'e': 'x'::blob} as f"
    (row,) = rows(call("sql", query, "--json"))
    assert row == {"a": None, "b": "1.50", "c": "2026-01-31", "d": [1, None], "f": {"e": "eA=="}}


def test_what_is_not_text_is_shown_all_the_same_or_given_as_bytes(call: Call, prepare: Prepare) -> None:
    prepare("s_bytes", (None, b"\xff!", 0), (None, "gr\u00f6\u00dfe", 0))
    query = 'select value from s_bytes order by "offset"'
    assert rows(call("sql", query, "--json")) == [{"value": "\ufffd!"}, {"value": "gr\u00f6\u00dfe"}]
    assert rows(call("sql", query, "--json", "--binary"))[0] == {"value": "/yE="}


def test_a_topic_may_be_scanned_twice_and_quoted(call: Call, prepare: Prepare) -> None:
    prepare("s-twice.1", *ORDERS)
    query = 'select count(*) as n from "s-twice.1" a join "s-twice.1" b using (key)'
    assert call("sql", query) == "n\n6\n"
    query = 'select count(*) as n from (from "s-twice.1" union all from "s-twice.1")'
    assert call("sql", query) == "n\n12\n"


def test_conditions_hold_whatever_columns_they_need(call: Call, prepare: Prepare) -> None:
    prepare("s_conditions", *ORDERS)
    query = """select key from s_conditions where "offset" >= 2 and timestamp < '1970-01-01T00:00:05Z' order by 1"""
    assert call("sql", query) == "key\nk2\nk3\n"


def test_only_the_part_between_start_and_end_is_read(call: Call, prepare: Prepare) -> None:
    prepare("s_part", *ORDERS)
    query = "select key from s_part"
    assert call("sql", query, "--start", 4) == "key\nk4\nk5\n"
    assert call("sql", query, "--start", "1970-01-01T00:00:02Z", "--end", "1970-01-01T00:00:04Z") == "key\nk1\nk2\n"
    assert call("sql", query, "--start", "latest") == "key\n"


def test_a_query_that_needs_little_reads_little(broker: flowstone.Broker, call: Call, prepare: Prepare) -> None:
    prepare("s_little", *ORDERS)
    with broker.fault("Fetch", delay_ms=1) as fault:
        assert call("sql", "describe s_little").startswith("column_name")
    assert fault.hits == 0


def test_a_topic_that_is_not_there_is_named_with_the_nearest(refused: Call, prepare: Prepare) -> None:
    prepare("s_customers")
    told = refused("sql", "select * from s_custmers")
    assert told == "flowstone: there is no topic s_custmers; did you mean s_customers?\n"
    assert refused("sql", "select * from zzz").endswith("there is no topic zzz; see `flowstone topic list`\n")


def test_a_query_that_is_no_sql_is_refused_in_duckdbs_words(refused: Call) -> None:
    assert refused("sql", "select 1 +").startswith("flowstone: DuckDB: Parser Error: syntax error")


def test_a_place_that_is_none_is_refused(refused: Call) -> None:
    told = refused("sql", "select 1", "--start", "soon")
    assert told.startswith("flowstone: --start soon: expected earliest, latest, an offset, or a time")


def test_a_read_that_fails_is_told_in_its_own_words(broker: flowstone.Broker, refused: Call, prepare: Prepare) -> None:
    prepare("s_failing", *ORDERS)
    with broker.fault("Fetch", error=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        told = refused("sql", "select * from s_failing")
    assert told.startswith("flowstone: s_failing-0: this client may not use the topic")


def test_nothing_but_the_answer_is_printed_by_a_process_of_its_own(
    run_process: Run, broker: flowstone.Broker, prepare: Prepare
) -> None:
    prepare("s_process", *ORDERS)
    for query, status in (("select count(*) as n from s_process", 0), ("select * from s_nowhere", 1)):
        result = run_process("sql", query, "--bootstrap", broker.bootstrap)
        assert result.returncode == status, result.stderr
        assert len((result.stdout + result.stderr).splitlines()) == (2 if status == 0 else 1)


def test_without_duckdb_the_extra_is_named(refused: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "run `pip install 'flowstone[sql]'`" in refused("sql", "select 1")


def test_records_of_aborted_and_open_transactions_are_omitted_if_wanted(
    call: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    prepare("s_ledger")
    writer = TransactionalWriter(broker.bootstrap, "s_ledger")
    for outcome in (ABORTED, COMMITTED, OPEN):
        writer.write(outcome, 2)
    query = "select value from s_ledger order by 1"
    assert call("sql", query, "--read-committed").splitlines()[1:] == ["committed 2 0", "committed 2 1"]
    assert len(call("sql", query).splitlines()[1:]) == 6
