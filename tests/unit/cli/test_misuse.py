"""Mistakes that people make on the command line, and what each command says about them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import flowstone
from tests.unit.cli.conftest import COMMAND_TIMEOUT_S, Call, Prepare, Run, command_environment
from tests.unit.cli.terminal import Terminal

OpenTerminal = Callable[..., Terminal]

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("option", "value", "bounds"),
    [
        ("--partitions", 3_000_000, "between 1 and 10000"),
        ("--partitions", -5, "between 1 and 10000"),
        ("--partitions", 0, "between 1 and 10000"),
        ("--partitions", 2**31, "between 1 and 10000"),
        ("--replication-factor", 99_999, "between 1 and 10000"),
        ("--replication-factor", -2, "between 1 and 10000"),
        ("--replication-factor", 10**30, "between 1 and 10000"),
    ],
)
def test_a_number_out_of_range_is_told_with_the_range(refused: Call, option: str, value: int, bounds: str) -> None:
    assert refused("topic", "create", "misused", option, value).startswith(
        f"flowstone: {option} {value}: choose {bounds}"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "alter", "misused", "--partitions", 2**31),
        ("consume", "misused", "--offset", 2**63),
        ("consume", "misused", "--partition", 2**31),
        ("cluster", "unregister", 2**31),
        ("generate", "orders", "--rate", "nan"),
        ("produce", "misused", "--timeout", "inf"),
    ],
)
def test_an_option_out_of_its_range_is_not_understood(
    run: Run, broker: flowstone.Broker, arguments: list[object]
) -> None:
    result = run(*arguments, "--bootstrap", broker.bootstrap)
    assert result.returncode == 2
    assert "Invalid value for" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_out_of_range_is_called_that(run: Run, refused: Call) -> None:
    result = run("up", "--port", 99999, "--data", "unused")
    assert result.returncode == 1
    assert "there is no port 99999" in result.stderr
    assert "choose one from 0 to 65535" in result.stderr
    told = run("topic", "list", "--bootstrap", "127.0.0.1:99999").stderr
    assert "there is no port 99999, ports are 1 to 65535" in told


def test_a_time_in_the_future_is_told_with_the_setting_and_its_limit(refused: Call, prepare: Prepare) -> None:
    prepare("punctual")
    ahead_ms = int(time.time() * 1000) + 365 * DAY_MS
    lines = f'{{"at": {int(time.time() * 1000)}}}\n{{"at": {ahead_ms}}}\n'
    told = refused("produce", "punctual", "--format", "jsonl", "--timestamp-field", "at", input=lines)
    assert "message.timestamp.after.max.ms=3600000 (milliseconds)" in told
    assert f"{time.localtime(ahead_ms / 1000).tm_year}-" in told
    assert "flowstone topic alter punctual --set message.timestamp.after.max.ms=N" in told


def test_a_topic_is_deleted_only_with_leave(refused: Call, call: Call, prepare: Prepare) -> None:
    prepare("kept", partitions=2)
    told = refused("topic", "delete", "kept")
    assert told == (
        "flowstone: kept and all records in its 2 partitions will be deleted permanently; use --yes to confirm\n"
    )
    assert "kept" in call("topic", "list").splitlines()
    assert call("topic", "delete", "kept", "--yes") == "deleted kept\n"


def test_help_is_not_cut_on_a_wide_terminal(run_process: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for arguments in ([], ["topic"], ["cluster"], ["group"], ["log"]):
        told = run_process(*arguments, "--help", COLUMNS="200").stdout
        assert "Commands:" in told
        assert "..." not in told.partition("Commands:")[2]
        assert max(map(len, told.splitlines())) > 80 or arguments


def test_the_query_in_the_help_of_sql_works_on_generated_orders(run: Run) -> None:
    pytest.importorskip("duckdb")
    query = " ".join(run("sql", "--help").stdout.split()).partition("such as ")[2].partition(". ")[0]
    assert query.startswith("select ")
    with flowstone.Broker() as broker:
        broker.create_topic("orders")
        assert run("generate", "orders", "--rows", 100, "--bootstrap", broker.bootstrap).returncode == 0
        lines = run("sql", query, "--bootstrap", broker.bootstrap).stdout.splitlines()
    assert len(lines) > 2
    assert lines[1].split()[0].isalpha()  # a value, not the nothing that a column has that is not there


def test_control_characters_in_a_value_do_not_reach_the_terminal(refused: Call) -> None:
    told = refused("topic", "describe", "a\x1b[31m\nb")
    assert "a\\x1b[31m\\nb" in told


def test_an_argument_that_is_not_utf8_is_told(broker: flowstone.Broker) -> None:
    done = subprocess.run(
        [
            sys.executable.encode(),
            b"-m",
            b"flowstone.cli",
            b"topic",
            b"create",
            b"caf\xe9",
            b"--bootstrap",
            broker.bootstrap.encode(),
        ],
        env=command_environment(),
        capture_output=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(b"flowstone: ")
    assert done.stderr.count(b"\n") == 1


def test_a_directory_that_is_no_brokers_is_not_called_undamaged(run: Run, tmp_path: Path) -> None:
    result = run("log", "verify", tmp_path)
    assert result.returncode == 1
    assert result.stderr == f"flowstone: {tmp_path} is not a broker's data directory: it has no meta.properties\n"


def test_a_wrong_value_is_told_with_the_name_that_was_given(run: Run) -> None:
    told = run("up", "--set", "log.retention.hours=abc").stderr
    assert told == "flowstone: log.retention.hours=abc: retention.ms: 'abc' is not a whole number\n"


def test_on_a_terminal_the_answer_decides_whether_a_topic_is_deleted(terminal: OpenTerminal, prepare: Prepare) -> None:
    prepare("doomed")
    for answer, status in (("n", 1), ("y", 0)):
        screen = terminal("topic", "delete", "doomed")
        screen.wait_for("Go on? [y/N]")
        assert "doomed and all records in its 1 partition will be deleted" in screen.text.replace("\n", " ")
        screen.type(f"{answer}\n")
        assert screen.end() == status
    assert screen.text.endswith("deleted doomed")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("x" * 100, "is not a host name"),
        ("127.0.0.1:99999", "there is no port 99999"),
        ("127.0.0.1:2181,other:http", "is not HOST:PORT"),
    ],
)
def test_an_address_of_zookeeper_that_cannot_be_one_is_told_at_once(run: Run, address: str, said: str) -> None:
    result = run("up", "--zookeeper", address, "--data", "unused")
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert said in result.stderr


def test_events_do_not_begin_after_the_year_9999(refused: Call, prepare: Prepare) -> None:
    prepare("far")
    told = refused("generate", "orders", "--topic", "far", "--start", 253_402_300_800_000)
    assert "ends with the year 9999" in told
