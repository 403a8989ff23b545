"""`flowstone queue work`: a shell command for each record, whose exit status decides."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import flowstone
from tests.unit.cli.conftest import Call, Prepare, Run

Work = Callable[..., str]
_numbers = count()


@pytest.fixture
def topic(prepare: Prepare) -> str:
    name = f"work-{next(_numbers)}"
    prepare(name, ("k0", "a", 0), ("k1", "b", 0), ("k2", "c", 0))
    return name


@pytest.fixture
def work(run: Run, broker: flowstone.Broker, topic: str) -> Callable[..., str]:
    """Work on the topic until it is idle; what the command said at the end."""

    def work(command: str, *options: object) -> str:
        about = ("--group", f"workers-of-{topic}", "--bootstrap", broker.bootstrap, "--idle", "0.4", *options)
        done = run("queue", "work", topic, "--exec", command, *about)
        assert done.returncode == 0
        return done.stderr.splitlines()[-1]

    return work


def lag(call: Call, topic: str) -> int:
    return int(json.loads(call("share", "describe", f"workers-of-{topic}", "--json"))["lag"])


def test_a_command_gets_each_record_on_its_standard_input_and_about_it_in_its_environment(
    work: Work, call: Call, topic: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    about = "$FLOWSTONE_TOPIC/$FLOWSTONE_PARTITION@$FLOWSTONE_OFFSET $FLOWSTONE_KEY $FLOWSTONE_ATTEMPT"
    work(f'echo "$(cat) {about}" >> {seen}')
    assert seen.read_text().splitlines() == [f"{value} {topic}/0@{n} k{n} 1" for n, value in enumerate("abc")]
    assert lag(call, topic) == 0


def test_a_command_that_fails_is_run_again_and_one_that_rejects_is_not(
    work: Work, call: Call, topic: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = (
        f"echo $FLOWSTONE_OFFSET >> {seen}; case $FLOWSTONE_OFFSET$FLOWSTONE_ATTEMPT in 01) exit 1;; 1*) exit 65;; esac"
    )
    work(script, "--concurrency", "3")
    assert sorted(seen.read_text().split()) == ["0", "0", "1", "2"]
    assert lag(call, topic) == 0


def test_a_command_that_takes_too_long_is_killed_and_its_record_is_tried_again(
    work: Work, call: Call, topic: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = f"echo $FLOWSTONE_OFFSET >> {seen}; test $FLOWSTONE_OFFSET$FLOWSTONE_ATTEMPT != 01 || exec sleep 60"
    work(script, "--timeout", "0.5")
    assert sorted(seen.read_text().split()) == ["0", "0", "1", "2"]


def test_a_topic_that_does_not_exist_is_an_error(refused: Call) -> None:
    assert "there is no topic" in refused("queue", "work", "none", "--group", "g", "--exec", "true")


def test_the_command_reports_what_it_did(work: Work) -> None:
    assert work("true") == "3 runs: 3 accepted"


def test_at_sigterm_commands_that_run_are_finished_and_the_rest_is_returned(
    spawn: Callable[..., subprocess.Popen[str]], call: Call, topic: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    script = f"echo begun >> {seen}; sleep 1; echo done >> {seen}"
    worker = spawn("queue", "work", topic, "--group", f"workers-of-{topic}", "--exec", script)
    deadline = time.monotonic() + 20
    while not seen.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert seen.read_text().split() == ["begun", "done"]
    assert json.loads(call("share", "describe", f"workers-of-{topic}", "--json"))["state"] == "Empty"
    assert lag(call, topic) == 2
