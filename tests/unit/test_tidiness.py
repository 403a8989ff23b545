"""The project stays tidy: sizes, complexity, the style of the prose, and a test module for every module.

Limits may only be tightened. What is counted, and how allowances are lowered, is in `tests/support/tidiness.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support import tidiness
from tests.support.tidiness import ROOT


class Lines(NamedTuple):
    file_max: int
    function_max: int


class Larger(NamedTuple):
    files_max: int
    reason: str


# About the worst of each tree. New code: files of about 250 lines, functions of about 40.
LINES = {
    "src": Lines(407, 66),
    "bench": Lines(252, 39),
    "scripts": Lines(196, 37),
    "examples": Lines(136, 43),
    "tests": Lines(632, 63),
}
# How far a limit may be above the worst of its tree.
SLACK = Lines(20, 5)
# Enforced by ruff (C901) in all trees.
COMPLEXITY_MAX = 12
COMPLEXITY_EXCEPTIONS: set[str] = set()

PACKAGE_FILES_MAX = 20
LARGER_PACKAGES = {
    "src/flowstone/broker/handlers": Larger(45, "one file for each API"),
    "src/flowstone/kernel": Larger(23, "a native and a Python form of each function, and what they share"),
    "bench": Larger(39, "one program for each measurement"),
    "tests/clients": Larger(23, "a driver for each client library, and a file for each kind of behaviour"),
    "tests/faults": Larger(31, "a file for each kind of fault, and the programs that are killed"),
    "tests/sim": Larger(21, "a file for each simulated part of a cluster"),
    "tests/support": Larger(28, "parts that test modules of several packages share, each on its own"),
}

# Why modules of a package may be without a test module of their own; how many there are is in the allowances.
BY_REQUESTS = "handlers and what they share are asked over the wire: tests/unit/broker/handlers, by topic"
BY_OWNER = "parts of one owner, tested through it: a test module per behaviour in the mirrored package"
BY_COMMAND = "run as commands, with their output: tests/unit/cli, a module per command"
BY_TWIN = "native face and Python twin are compared in one test module: tests/unit/kernel"
BY_SIMULATION = "state machines of one owner, run by scenarios and random histories in the mirrored package"
BY_ZOOKEEPER = "asked of a real ensemble: tests/zookeeper"
BY_FIXTURES = (
    "the public fixtures: tests/unit/test_embedded*.py, tests/unit/test_pytest_plugin.py, tests/fixture_project"
)
BY_SPARK = "needs Spark's processes: tests/spark, tests/unit/spark"
BY_PIPELINES = "whole pipelines on a session of Spark: tests/spark_pipeline, a module per command or behaviour"
NO_BEHAVIOUR = "constants, tables and types, used by the tests of all that need them"
BY_LOG_SCENARIOS = "a log as a whole, by scenarios, crashes and properties: tests/unit/log"

REASONS = {
    "src/flowstone": NO_BEHAVIOUR,
    "src/flowstone/arrow": BY_OWNER,
    "src/flowstone/broker": BY_REQUESTS,
    "src/flowstone/authentication": NO_BEHAVIOUR,
    "src/flowstone/broker/authentication": "logins over the wire: tests/unit/broker/network/test_login_gate.py",
    "src/flowstone/broker/handlers/security": BY_REQUESTS,
    "src/flowstone/broker/authorization": "asked over the wire: test_every_api.py, test_entries.py",
    "src/flowstone/broker/clustering": "brokers together: tests/unit/broker/clustering, tests/cluster, tests/sim",
    "src/flowstone/broker/coordinators": BY_REQUESTS,
    "src/flowstone/broker/coordinators/share": BY_OWNER,
    "src/flowstone/broker/dispatch": BY_REQUESTS,
    "src/flowstone/broker/fetching": BY_REQUESTS,
    "src/flowstone/broker/handlers": BY_REQUESTS,
    "src/flowstone/broker/handlers/cluster": BY_REQUESTS,
    "src/flowstone/broker/handlers/consumer": BY_REQUESTS,
    "src/flowstone/broker/handlers/telemetry": BY_REQUESTS,
    "src/flowstone/broker/handlers/share": BY_REQUESTS,
    "src/flowstone/broker/http/pages": "asked over HTTP, in the tests of what they show",
    "src/flowstone/broker/lag": BY_OWNER,
    "src/flowstone/broker/loop": BY_OWNER,
    "src/flowstone/broker/metrics": "scraped over HTTP: tests/unit/broker/requests/test_broker_metrics.py",
    "src/flowstone/broker/requests": BY_REQUESTS,
    "src/flowstone/broker/sharing": BY_REQUESTS,
    "src/flowstone/broker/sharing/letters": BY_REQUESTS,
    "src/flowstone/broker/sharing/reads": BY_REQUESTS,
    "src/flowstone/broker/topics": BY_REQUESTS,
    "src/flowstone/cli": BY_COMMAND,
    "src/flowstone/cli/access": BY_COMMAND,
    "src/flowstone/cli/backup": BY_COMMAND,
    "src/flowstone/cli/cluster": "run against a cluster: tests/cluster",
    "src/flowstone/cli/common": BY_COMMAND,
    "src/flowstone/cli/doctor": BY_COMMAND,
    "src/flowstone/cli/group": BY_COMMAND,
    "src/flowstone/cli/log_files": BY_COMMAND,
    "src/flowstone/cli/query": BY_COMMAND,
    "src/flowstone/cli/records": BY_COMMAND,
    "src/flowstone/cli/share": BY_COMMAND,
    "src/flowstone/cli/topic": BY_COMMAND,
    "src/flowstone/cli/up": BY_COMMAND,
    "src/flowstone/client": "against a scripted broker: tests/unit/client/test_scripted.py, test_kafka.py",
    "src/flowstone/cluster/decisions": BY_SIMULATION,
    "src/flowstone/cluster/image": NO_BEHAVIOUR,
    "src/flowstone/cluster/image/records": "declarations, by their stored form: test_stored_form.py",
    "src/flowstone/cluster/logs": BY_OWNER,
    "src/flowstone/cluster/zookeeper": BY_ZOOKEEPER,
    "src/flowstone/config": "tables of settings; parsing is tested with the broker that reads them",
    "src/flowstone/coordinator": BY_SIMULATION,
    "src/flowstone/coordinator/groups": BY_SIMULATION,
    "src/flowstone/coordinator/groups/classic": BY_SIMULATION,
    "src/flowstone/coordinator/groups/consumer": "by scenarios: tests/unit/coordinator/groups/consumer/scenarios",
    "src/flowstone/coordinator/groups/share": BY_SIMULATION,
    "src/flowstone/coordinator/share": BY_OWNER,
    "src/flowstone/coordinator/transactions": BY_SIMULATION,
    "src/flowstone/embedded": BY_FIXTURES,
    "src/flowstone/kernel": BY_TWIN,
    "src/flowstone/log/branching": BY_LOG_SCENARIOS,
    "src/flowstone/log/compaction": BY_LOG_SCENARIOS,
    "src/flowstone/log/directories": BY_LOG_SCENARIOS,
    "src/flowstone/log/lifecycle": BY_LOG_SCENARIOS,
    "src/flowstone/log/partition": BY_LOG_SCENARIOS,
    "src/flowstone/log/scrubbing": BY_LOG_SCENARIOS,
    "src/flowstone/log/segments": BY_LOG_SCENARIOS,
    "src/flowstone/log/workers": BY_LOG_SCENARIOS,
    "src/flowstone/ports": "the machine itself, or its simulated form, under every other test",
    "src/flowstone/pipeline": "types and errors, used by the tests of its packages",
    "src/flowstone/pipeline/state": "through the store: tests/unit/pipeline/state/test_store.py",
    "src/flowstone/pipeline/formats": "expressions of Spark: tests/spark_pipeline/formats",
    "src/flowstone/pipeline/formats/protobuf": "tests/spark_pipeline/formats/test_protobuf_format.py",
    "src/flowstone/pipeline/formats/registry": "others' serializers: tests/unit/pipeline/formats/registry",
    "src/flowstone/pipeline/formats/avro": "one decoder and one encoder: tests/unit/pipeline/formats/avro",
    "src/flowstone/cli/pipeline": BY_PIPELINES,
    "src/flowstone/pipeline/authoring": BY_PIPELINES,
    "src/flowstone/pipeline/engine": BY_PIPELINES,
    "src/flowstone/pipeline/operations": BY_PIPELINES,
    "src/flowstone/pipeline/operations/letters": BY_PIPELINES,
    "src/flowstone/pipeline/tables": "written by Spark's tasks, read by others: tests/spark_pipeline/test_tables.py",
    "src/flowstone/queues": "through the queue, against a broker: tests/unit/queues/test_queue.py",
    "src/flowstone/replication": BY_SIMULATION,
    "src/flowstone/wire": "the code they generate is tested: tests/unit/wire/test_codec.py, test_schema.py",
    "src/pyspark_flowstone": BY_SPARK,
}


def test_no_file_is_longer_than_its_trees_limit() -> None:
    lengths = {path: text.count("\n") for path, text in tidiness.texts().items()}
    assert [f"{path}: {n} lines" for path, n in lengths.items() if n > _limit(path).file_max] == []


def test_no_function_is_longer_than_its_trees_limit() -> None:
    long = [each for each in tidiness.functions() if each.lines > _limit(each.path).function_max]
    assert [f"{each.path}: {each.name} has {each.lines} lines" for each in long] == []


def _limit(path: str) -> Lines:
    return LINES[path.partition("/")[0]]


def test_ruff_refuses_complex_functions() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    assert "C90" in lint["select"]
    assert lint["mccabe"]["max-complexity"] <= COMPLEXITY_MAX
    excepted = {path for path, rules in lint["per-file-ignores"].items() if {"C90", "C901"} & set(rules)}
    assert excepted <= COMPLEXITY_EXCEPTIONS
    assert not [rule for rule in lint["ignore"] if rule.startswith("C90")]


def test_complexity_is_not_excused_in_the_code() -> None:
    excused = "noqa: " + "C901"
    assert [path for path, text in tidiness.texts().items() if excused in text] == []


def test_no_package_has_more_files_than_its_limit() -> None:
    sizes = tidiness.package_sizes()
    limits = {path: larger.files_max for path, larger in LARGER_PACKAGES.items()}
    assert {path: n for path, n in sizes.items() if n > limits.get(path, PACKAGE_FILES_MAX)} == {}


def test_packages_with_limits_of_their_own_need_them() -> None:
    sizes = tidiness.package_sizes()
    assert [path for path in LARGER_PACKAGES if sizes[path] <= PACKAGE_FILES_MAX] == []


@pytest.mark.parametrize("tree", LINES)
def test_limits_are_as_tight_as_the_code_allows(tree: str) -> None:
    """A file or a function may be shortened; then its tree's limit follows, and a few lines are left for changes."""
    longest = Lines(
        max(text.count("\n") for path, text in tidiness.texts().items() if path.startswith(f"{tree}/")),
        max(each.lines for each in tidiness.functions() if each.path.startswith(f"{tree}/")),
    )
    assert longest.file_max >= LINES[tree].file_max - SLACK.file_max
    assert longest.function_max >= LINES[tree].function_max - SLACK.function_max


def test_no_file_names_a_directory_of_one_machine() -> None:
    files = {**tidiness.texts(), **tidiness.prose()}
    found = [
        f"{path}:{number}"
        for path, text in files.items()
        if path not in tidiness.ABOUT_STYLE
        for number, line in enumerate(text.splitlines(), 1)
        if tidiness.MACHINE_PATH.search(line)
    ]
    assert found == []


def test_every_package_whose_modules_lack_tests_says_why() -> None:
    lacking = set(tidiness.modules_without_test())
    assert sorted(lacking - set(REASONS)) == [], "give a reason, or better a test module"
    assert sorted(set(REASONS) - lacking) == [], "these reasons are no longer needed"


@pytest.mark.parametrize("kind", tidiness.KINDS)
def test_no_count_rises_and_allowances_follow_when_one_falls(kind: str) -> None:
    allowed, found = tidiness.read_allowances()[kind], tidiness.KINDS[kind]()
    assert list(_differences(allowed, found)) == []


def _differences(allowed: dict[str, int], found: dict[str, int]) -> Iterator[str]:
    for path in sorted(allowed.keys() | found.keys()):
        old, new = allowed.get(path, 0), found.get(path, 0)
        if new > old:
            yield f"{path}: {new}, and {old} are allowed: mend the new ones"
        elif new < old:
            yield f"{path}: {new}, and {old} are allowed: run `python -m tests.support.tidiness` to lower the allowance"


# That the checks can fail


@pytest.mark.parametrize(
    ("text", "word"),
    [("def make_room(self)", "room"), ("Looks out for it", "looks out for"), ("a lent reply", "lent")],
)
def test_a_banned_word_is_found_in_names_and_prose(text: str, word: str) -> None:
    assert tidiness.find_banned(text) == [word]


@pytest.mark.parametrize("text", ["the bathroom light", "length", "placement", "impatience"])
def test_a_word_that_only_contains_a_banned_one_is_not_found(text: str) -> None:
    assert tidiness.find_banned(text) == []


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("src/flowstone/promise.py", "tests/unit/test_promise.py"),
        ("src/flowstone/log/manager.py", "tests/unit/log/test_manager.py"),
        ("src/pyspark_flowstone/offsets.py", "tests/unit/spark/test_offsets.py"),
    ],
)
def test_tests_are_laid_out_as_the_source(path: str, test: str) -> None:
    assert tidiness.test_of(path) == test
