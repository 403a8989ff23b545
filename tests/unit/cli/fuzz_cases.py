"""Every command with absurd values for each of its options and arguments, read off the commands themselves.

A case is a command that works (`BASELINES`) with one value replaced. A new command or option is fuzzed without a change
here, unless the command needs arguments to get as far as its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import typer.main

from flowstone.cli.commands import build_app
from flowstone.cli.up.command import build_parser

# Names that exist in the directory a case runs in, and at its broker.
TOPIC, TARGET, VICTIM, GROUP = "fuzzed", "target", "victim", "fuzzers"
FILE, DATA, BACKUP = "a-file.jsonl", "data", "backup"

NUMBERS = (
    *("-5", "-1", "0", "32768", "3000000", "2147483648", "9223372036854775808", "1" + "0" * 30, "9" * 5000),
    *("NaN", "-inf", "1e309", "١٢", "²", "1_0"),
)
TEXTS = (
    *("", " ", "x" * 100_000, "\x01\x1b[31m\x7f\n\t", "☃ é \u202e", "\udcff\udcfe", "%s%n{0}", "'; --", "../.."),
    *("=", "=x", "x=", "a,b,,c", "1:2:3", "-x", "null", "$(true)"),
)
PATHS = ("missing/file", "a-directory", FILE, "/dev/null", "/proc/self/mem", "empty.csv", "not-text.jsonl", "x.parquet")
ADDRESSES = ("127.0.0.1:99999", "127.0.0.1:1", ":", "[::1", "host.invalid:9092", "127.0.0.1:-1", "PLAINTEXT://:0", ",,")
TIMES = (
    *("yesterday 99:99", "999999999999999999999999 hours ago", "0001-01-01", "9999-12-31T23:59:59-23:59"),
    *("253402300800000", "1 Jan 2020"),
)
VALUES = (*NUMBERS, *TEXTS, *PATHS, *ADDRESSES, *TIMES)

# What a command needs to get as far as its work.
BASELINES: dict[str, list[str]] = {
    "produce": [TOPIC],
    "consume": [TOPIC],
    "generate": ["orders", "--topic", TOPIC, "--rows", "10"],
    "branch": [TOPIC, "branch-{number}"],
    "replay": [TOPIC, TARGET],
    "explain": [f"{TOPIC}/0@1"],
    "sql": [f"select count(*) from {TOPIC}"],
    "backup": [TOPIC, "--to", "backup-{number}"],
    "restore": ["--from", BACKUP, "--as", "restored-{number}", TOPIC],
    "completion": ["bash"],
    "topic create": ["created-{number}"],
    "topic describe": [TOPIC],
    "topic offsets": [TOPIC],
    "topic alter": [TOPIC, "--set", "retention.ms=100000000", "--yes"],
    "topic delete": [VICTIM, "--yes"],
    "group describe": [GROUP],
    "group reset": [GROUP, "--to-earliest", "--topic", TOPIC, "--dry-run"],
    "group delete": [GROUP + "-none"],
    "group watch": [GROUP],
    "pipeline new": ["pipeline-{number}"],
    "share describe": [GROUP + "-shared"],
    "share alter": [GROUP + "-shared", "--set", "share.delivery.count.limit=3"],
    "share reset": [GROUP + "-shared", "--to-earliest", "--topic", TOPIC, "--dry-run"],
    "share delete": [GROUP + "-none", "--yes"],
    "queue work": [TOPIC, "--group", GROUP + "-shared", "--exec", "true", "--idle", "0.2"],
    "dlq show": [TOPIC],
    "dlq retry": [TOPIC],
    "dlq drop": [TOPIC, "--yes"],
    **{
        f"pipeline {name}": ["a-directory"]
        for name in ("check", "test", "run", "status", "plan", "diff", "compact", "submit", "graph", "letters list")
    },
    "pipeline letters show": ["a-directory", "0-0"],
    "pipeline letters retry": ["a-directory", "0-0"],
    "pipeline letters drop": ["a-directory", "0-0", "--yes"],
    "pipeline replay": ["a-directory", "--from", "earliest", "--yes"],
    "pipeline backfill": ["a-directory", "--yes"],
    "pipeline reset": ["a-directory", "--to", "earliest", "--yes"],
    "txn describe": ["fuzzed-transaction"],
    "txn producers": [f"{TOPIC}/0"],
    "txn find-hanging": ["--topic", TOPIC, "--max-transaction-timeout", "0"],
    "txn abort": [f"{TOPIC}/0@0", "--yes"],
    "secure init": ["secure-{number}"],
    "user add": ["fuzzer-{number}", "--password", "a-password"],
    "user remove": ["fuzzer-none", "--yes"],
    "profile add": ["fuzzer-{number}", "--servers", "127.0.0.1:1"],
    "profile remove": ["fuzzer-none"],
    "token renew": ["a-token"],
    "token expire": ["a-token", "--yes"],
    "quota set": ["--user", "fuzzer", "--produce", "1000000"],
    "quota remove": ["--user", "fuzzer", "--yes"],
    "acl add": ["--user", "fuzzer", "--topic", TOPIC, "--operation", "read"],
    "acl remove": ["--user", "fuzzer", "--yes"],
    "cluster elect": ["--yes"],
    "cluster reassign": ["--topic", TOPIC, "--brokers", "1", "--dry-run"],
    "cluster drain": ["7"],
    "cluster unregister": ["7"],
    "cluster features upgrade": ["flowstone.metadata.version=2", "--dry-run"],
    "cluster features downgrade": ["flowstone.metadata.version=2", "--dry-run"],
    "cluster found": ["--data", DATA, "--zookeeper", "127.0.0.1:1"],
    "cluster restore-metadata": ["--data", DATA, "--zookeeper", "127.0.0.1:1"],
    "log dump": [f"{DATA}/{TOPIC}-0"],
    "log verify": [DATA],
    "log repair": [DATA, "--topic", TOPIC, "--partition", "0"],
    "log forget": ["AAAAAAAAAAAAAAAAAAAAAA", DATA],
    "up": ["--data", "up-{number}", "--listen", "127.0.0.1:0", "--http", "off", "--log-level", "error"],
    "__complete": ["topic", "d"],
}
# Whatever they are given, these go on until they are interrupted, or for as long as they are told to.
ENDLESS = (
    *("up", "group watch", "cluster found", "cluster restore-metadata"),  # the last two wait for ZooKeeper
    *("consume --follow", "generate --rows", "generate --rate", "replay --speed", "produce --timeout"),
)


class Parameter(NamedTuple):
    name: str  # an option's, or the metavar of an argument
    position: int | None  # of an argument, among the arguments; None: an option
    is_flag: bool
    is_required: bool = False


class Command(NamedTuple):
    name: str
    parameters: tuple[Parameter, ...]


class Mutation(NamedTuple):
    command: str
    parameter: str
    arguments: list[str]
    is_endless: bool


def commands() -> Iterator[Command]:
    """Every command that typer knows, `up`, which argparse knows, and what shells ask."""
    for name, command in _leaves(typer.main.get_command(build_app("")), ""):
        if name != "up":
            yield Command(name, tuple(_typer_parameters(command)))
    options = (
        Parameter(action.option_strings[0], None, action.nargs == 0)
        for action in build_parser()._actions
        if action.option_strings and action.dest != "help"
    )
    yield Command("up", tuple(options))
    yield Command("__complete", (Parameter("WORD", 0, False), Parameter("WORD", 1, False)))


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, f"{path} {name}".strip())


def _typer_parameters(command: Any) -> Iterator[Parameter]:
    position = 0
    for each in command.params:
        if each.param_type_name == "argument":
            yield Parameter(each.metavar or each.name, position, False, each.required)
            position += 1
        else:
            yield Parameter(each.opts[0], None, each.is_flag, each.required)


def mutations(values: Sequence[str] = VALUES) -> Iterator[Mutation]:
    """Each value for each option and argument of each command; flags once."""
    number = 0
    for command in commands():
        baseline = BASELINES.get(command.name, [])
        for parameter in command.parameters:
            for value in [""] if parameter.is_flag else values:
                number += 1
                given = [each.replace("{number}", str(number)) for each in baseline]
                arguments = _replace(given, parameter, value)
                is_endless = command.name in ENDLESS or f"{command.name} {parameter.name}" in ENDLESS
                yield Mutation(command.name, parameter.name, [*command.name.split(), *arguments], is_endless)


def _replace(arguments: list[str], parameter: Parameter, value: str) -> list[str]:
    if parameter.is_flag:
        return arguments if parameter.name in arguments else [*arguments, parameter.name]
    if parameter.position is None:
        if parameter.name in arguments:
            at = arguments.index(parameter.name)
            return [*arguments[:at], f"{parameter.name}={value}", *arguments[at + 2 :]]
        return [*arguments, f"{parameter.name}={value}"]
    # Arguments go last, after "--", so that one that begins with a dash is no option.
    words, options = _split(arguments)
    words = [*words, *[""] * (parameter.position + 1 - len(words))]
    words[parameter.position] = value
    return [*options, "--", *words]


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Arguments, and options with their values."""
    words, options = [], []
    left = iter(arguments)
    for each in left:
        if each in ("--yes", "--dry-run", "--to-earliest", "--all"):
            options.append(each)
        elif each.startswith("--"):
            options += [each, next(left)]
        else:
            words.append(each)
    return words, options
