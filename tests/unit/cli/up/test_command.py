from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]
StartUp = Callable[..., Any]

ANY_PORT = ("--listen", "127.0.0.1:0")
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [\w.]+ .+")


def assert_refused(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One sentence on standard error, exit status 1, nothing else."""
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("flowstone: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_it_says_what_it_runs_on_and_then_that_it_is_ready(up: StartUp, tmp_path: Path) -> None:
    broker = up("--data", "data", *ANY_PORT)
    assert broker.lines[0] == f"data {tmp_path / 'data'}"
    assert broker.lines[1].startswith("flush every acks=all produce is on disk")
    assert broker.lines[2] in ("kernel native", "kernel python")
    assert re.fullmatch(r"ready 127\.0\.0\.1:\d+", broker.lines[3])


def test_it_says_where_its_pages_are(up: StartUp) -> None:
    broker = up("--data", "data", *ANY_PORT, http="127.0.0.1:0")
    word, address = broker.lines[3].split()
    assert word == "http"
    with urllib.request.urlopen(f"http://{address}/ready", timeout=10) as response:
        assert response.status == 200
    assert broker.end(signal.SIGTERM)[0] == 0


def test_a_taken_default_address_for_its_pages_is_a_warning(up: StartUp) -> None:
    with contextlib.ExitStack() as taken:
        with contextlib.suppress(OSError):  # any other process on that port will do as well
            taken.enter_context(socket.create_server(("127.0.0.1", 9080)))
        broker = up("--data", "data", *ANY_PORT, http=None)
    assert broker.lines[3] == f"ready {broker.address}"
    status, log = broker.end(signal.SIGTERM)
    assert status == 0
    assert "WARNING flowstone.app cannot serve HTTP on 127.0.0.1:9080" in log


def test_a_taken_chosen_address_for_its_pages_is_refused(run_process: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_refused(run_process("up", "--data", "data", *ANY_PORT, "--http", address), address, "in use", "--http")


def test_a_malformed_address_for_its_pages_is_refused(run_process: Run) -> None:
    assert_refused(run_process("up", "--data", "data", *ANY_PORT, "--http", "9080"), "HOST:PORT")


def test_it_serves_when_it_says_so(up: StartUp, run_process: Run) -> None:
    broker = up("--data", "data", *ANY_PORT)
    assert run_process("topic", "create", "orders", FLOWSTONE_BOOTSTRAP=broker.address).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(up: StartUp, tmp_path: Path, number: signal.Signals) -> None:
    status, log = up("--data", "data", *ANY_PORT).end(number)
    assert status == 0
    assert f"stopping on {number.name}" in log
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_second_interrupt_ends_it_even_if_the_disk_is_stuck(tmp_path: Path) -> None:
    program = """
import sys, threading
from flowstone.app import App
from flowstone.cli.main import main

async def stuck(self):
    threading.Event().wait()

App.stop = stuck
sys.argv = ["flowstone", "up", "--data", "data", "--listen", "127.0.0.1:0", "--http", "off"]
main()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while not process.stdout.readline().startswith("ready "):
            pass
        process.send_signal(signal.SIGINT)
        assert "stopping on SIGINT" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_it_serves_though_nobody_reads_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flowstone.cli", "up", "--data", "data", *ANY_PORT, "--http", "off"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as process:
        os.close(writing)
        assert process.stderr is not None
        assert "standard output is closed; serving on" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_the_log_is_one_line_per_event_on_standard_error(up: StartUp) -> None:
    _status, log = up("--data", "data", *ANY_PORT, "--log-level", "debug").end(signal.SIGTERM)
    assert log
    assert all(LOG_LINE.fullmatch(line) for line in log.splitlines())


def test_the_log_can_be_json(up: StartUp) -> None:
    _status, log = up("--data", "data", *ANY_PORT, "--log-format", "json").end(signal.SIGTERM)
    events = [json.loads(line) for line in log.splitlines()]
    assert [event["message"] for event in events if event["logger"] == "flowstone.cli.up.command"] == [
        "stopping on SIGTERM"
    ]
    assert all({"time", "level", "logger", "message"} <= set(event) for event in events)


def test_programs_may_have_it_in_json(up: StartUp) -> None:
    (line,) = up("--data", "data", *ANY_PORT, "--json").lines
    told = json.loads(line)
    assert list(told) == ["data", "flush", "kernel", "listeners", "http", "ready"]
    assert told["listeners"] == {"PLAINTEXT": told["ready"]}


def test_several_listeners_are_each_announced(up: StartUp) -> None:
    broker = up("--data", "data", "--listen", "INSIDE://127.0.0.1:0", "--listen", "OUTSIDE://127.0.0.1:0")
    inside, outside, ready = broker.lines[3:]
    assert inside == f"listener INSIDE {broker.address}"
    assert re.fullmatch(r"listener OUTSIDE 127\.0\.0\.1:\d+", outside)
    assert ready == f"ready {broker.address}"


def test_settings_come_from_file_environment_and_flag_in_that_order(run_process: Run, tmp_path: Path) -> None:
    (tmp_path / "broker.properties").write_text("num.partitions=0\n")
    assert_refused(run_process("up", "--config", "broker.properties"), "num.partitions: 0")
    environment = {"FLOWSTONE_SET_NUM_PARTITIONS": "-1"}
    assert_refused(run_process("up", "--config", "broker.properties", **environment), "num.partitions: -1")
    flag = ("--set", "num.partitions=-2")
    assert_refused(run_process("up", "--config", "broker.properties", *flag, **environment), "num.partitions: -2")


def test_an_unknown_setting_is_refused_with_the_nearest_one(run_process: Run) -> None:
    assert_refused(run_process("up", "--set", "num.partition=3"), "did you mean num.partitions?")


def test_a_bad_value_is_refused(run_process: Run) -> None:
    assert_refused(run_process("up", "--set", "num.partitions=many"), "'many' is not a whole number")


def test_a_port_that_is_taken_is_refused(run_process: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run_process("up", "--data", "data", "--listen", address, "--http", "off")
        assert_refused(result, address, "in use", "--listen")


def test_a_data_directory_in_use_is_refused(up: StartUp, run_process: Run) -> None:
    up("--data", "data", *ANY_PORT)
    assert_refused(run_process("up", "--data", "data", *ANY_PORT), "data directory", "in use", "--data")


def test_a_data_directory_that_cannot_be_made_is_refused(run_process: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(run_process("up", "--data", "file/data", *ANY_PORT), "file/data")


def test_a_malformed_address_is_refused(run_process: Run) -> None:
    assert_refused(run_process("up", "--data", "data", "--listen", "nowhere"), "HOST:PORT")


def test_a_missing_configuration_file_is_refused(run_process: Run) -> None:
    assert_refused(
        run_process("up", "--config", "nowhere.properties"), "cannot read the configuration file nowhere.properties"
    )


def test_starting_loads_neither_typer_nor_a_client_nor_http() -> None:
    program = (
        "import sys, flowstone.cli.up.command, flowstone.app; "
        "print(*{'typer', 'rich', 'confluent_kafka', 'uvicorn', 'starlette'}.intersection(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout == "\n"


def test_the_version_is_printed(run_process: Run) -> None:
    assert re.fullmatch(r"flowstone \d+\.\d+\.\d+\n", run_process("--version").stdout)


def test_help_lists_every_command(run_process: Run) -> None:
    result = run_process("--help")
    for command in ("up", "topic", "produce", "consume", "log"):
        assert re.search(rf"^  {command} ", result.stdout, re.MULTILINE)
