"""Absurd values on the command line: one sentence and an exit status, never a traceback, and an end in any case.

`make test` runs a sample that has every option and argument of every command. FLOWSTONE_CLI_FUZZ=all runs every value
(about half an hour), FLOWSTONE_CLI_FUZZ=N a sample chosen by the seed N.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import flowstone
from flowstone.app import App
from flowstone.cli.pipeline.common import EXIT_DECLARATION, EXIT_LATER
from flowstone.config import known_broker_names
from flowstone.errors import ConfigError
from tests.unit.cli.conftest import command_environment
from tests.unit.cli.fuzz_cases import (
    BACKUP,
    BASELINES,
    DATA,
    FILE,
    GROUP,
    TARGET,
    TOPIC,
    VALUES,
    VICTIM,
    Mutation,
    commands,
    mutations,
)
from tests.unit.cli.fuzz_runner import Case, Outcome

WANTED = os.environ.get("FLOWSTONE_CLI_FUZZ", "1")
# A command waits for a broker for so long at most (`clients.REQUEST_TIMEOUT_S`), for some requests twice.
LIMIT_S = 30.0
# Commands that go on until they are interrupted are interrupted after this.
ENDLESS_LIMIT_S = 1.5
RUN_TIMEOUT_S = 3600 if WANTED == "all" else 600
NOBODY = "127.0.0.1:1"

Verdicts = Callable[[list[Mutation], str], list[str]]


@pytest.fixture(scope="module")
def fuzzed_broker() -> Iterator[flowstone.Broker]:
    """A broker that the rest of the tests do not see, with a topic of records and a group."""
    with flowstone.Broker(http=True, settings={"num.partitions": 2}) as broker:
        for topic in (TOPIC, TARGET, VICTIM):
            broker.create_topic(topic)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(20):
            producer.produce(TOPIC, f'{{"n": {number}}}', str(number))
        assert producer.flush(10) == 0
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
        consumer.close()
        yield broker


@pytest.fixture(scope="module")
def fuzzed_directory(tmp_path_factory: pytest.TempPathFactory, fuzzed_broker: flowstone.Broker) -> Path:
    """Where commands run: what paths lead to."""
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "a-directory").mkdir()
    (directory / FILE).write_text('{"n": 1}\n')
    (directory / "empty.csv").write_text("")
    (directory / "not-text.jsonl").write_bytes(bytes(range(256)))
    (directory / "x.parquet").write_text("no Parquet")
    with flowstone.Broker(data=str(directory / DATA)) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(TOPIC, "value", "key", partition=0)
        assert producer.flush(10) == 0
    environment = {**command_environment(), "FLOWSTONE_BOOTSTRAP": fuzzed_broker.bootstrap}
    subprocess.run(
        [sys.executable, "-m", "flowstone.cli", "backup", TOPIC, "--to", BACKUP],
        cwd=directory,
        env=environment,
        check=True,
        capture_output=True,
    )
    return directory


@pytest.fixture(scope="module")
def verdicts(fuzzed_directory: Path) -> Verdicts:
    """Runs commands at a broker; what is wrong with how each has ended, where anything is."""

    def verdicts(wanted: list[Mutation], bootstrap: str) -> list[str]:
        cases = [_case(each, fuzzed_directory, bootstrap) for each in wanted]
        return [
            f"{_shown(wanted[outcome.number].arguments)}\n  {problem}\n  {outcome.errors[-1500:]}"
            for outcome in run(cases)
            if (problem := complaint(wanted[outcome.number], outcome)) is not None
        ]

    return verdicts


def _case(mutation: Mutation, directory: Path, bootstrap: str) -> Case:
    limit_s = ENDLESS_LIMIT_S if mutation.is_endless else LIMIT_S
    arguments = mutation.arguments
    if mutation.command in ("log repair", "log forget", "cluster found", "cluster restore-metadata"):
        # They may change what is in the directory: each case has a copy of its own.
        at = next(number for number in range(10**6) if not (directory / f"copy-{number}").exists())
        shutil.copytree(directory / DATA, directory / f"copy-{at}")
        arguments = [f"copy-{at}" if each == DATA else each for each in arguments]
    # Profiles are stored below the directory, not below the home of who runs the tests.
    environment = {"FLOWSTONE_BOOTSTRAP": bootstrap, "COLUMNS": "100", "XDG_CONFIG_HOME": str(directory / "config")}
    return Case(arguments, str(directory), limit_s, environment, "a line\n")


def run(cases: list[Case]) -> list[Outcome]:
    root = Path(__file__).parents[3]
    environment = command_environment()
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.cli.fuzz_runner"],
        input=json.dumps([asdict(case) for case in cases]),
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(root)))},
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


def complaint(mutation: Mutation, outcome: Outcome) -> str | None:
    """What is wrong with an outcome, or None."""
    said = outcome.output + outcome.errors
    if "Traceback (most recent call last)" in said or "Internal error" in said:
        return "a traceback"
    if outcome.killed:
        return "it did not end when it was interrupted"
    if outcome.interrupted and not mutation.is_endless:
        return f"it did not end within {LIMIT_S:.0f} s"
    if outcome.interrupted:
        return None
    if outcome.status not in (0, 1, 2, EXIT_LATER, EXIT_DECLARATION):
        return f"exit status {outcome.status}"
    if outcome.status and not outcome.errors.strip():
        # `log verify` and `doctor` say on standard output what they have found.
        return None if outcome.output.strip() else f"exit status {outcome.status} silently"
    if outcome.status not in (0, 2) and outcome.errors.count("\n") > 1:
        return "more than one sentence"
    return None


def _shown(arguments: list[str]) -> str:
    return "flowstone " + " ".join(repr(each[:60]) for each in arguments)


def sample(seed: int, per_parameter: int) -> list[Mutation]:
    """So many values for every option and argument of every command."""
    chance = random.Random(seed)
    found: dict[tuple[str, str], list[Mutation]] = {}
    for each in mutations():
        found.setdefault((each.command, each.parameter), []).append(each)
    return [each for of_one in found.values() for each in chance.sample(of_one, min(per_parameter, len(of_one)))]


def chosen(per_parameter: int) -> list[Mutation]:
    return list(mutations()) if WANTED == "all" else sample(int(WANTED), per_parameter)


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_absurd_values_at_a_broker_end_in_one_sentence(verdicts: Verdicts, fuzzed_broker: flowstone.Broker) -> None:
    problems = verdicts(chosen(1), fuzzed_broker.bootstrap)
    assert not problems, "\n".join(problems)


@pytest.mark.timeout(RUN_TIMEOUT_S)
def test_absurd_values_without_a_broker_end_in_one_sentence(verdicts: Verdicts) -> None:
    of_each = {each.command: each for each in chosen(1) if each.command != "up"}
    problems = verdicts(chosen(1) if WANTED == "all" else list(of_each.values()), NOBODY)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", known_broker_names())
def test_an_absurd_value_of_a_setting_is_taken_or_refused_with_a_sentence(name: str) -> None:
    """Anything but ConfigError would be a traceback of `flowstone up --set NAME=VALUE`."""
    told = []
    for value in VALUES:
        try:
            App({"log.dirs": "unused", name: value})
        except ConfigError as error:
            told.append(str(error))
    known_as = {"broker.id": "node.id", "log.dir": "log.dirs"}.get(name, name)
    assert all(known_as in each for each in told), told


def test_every_option_of_every_command_is_in_the_sample() -> None:
    every = {(each.command, each.parameter) for each in mutations(VALUES[:1])}
    assert {(each.command, each.parameter) for each in sample(1, 1)} == every
    assert len(every) > 150


def test_every_command_that_needs_arguments_has_a_baseline() -> None:
    """Without the arguments, the command line is refused before the command sees an absurd value of an option."""
    needing = {each.name for each in commands() if any(parameter.is_required for parameter in each.parameters)}
    assert sorted(needing - BASELINES.keys()) == []
