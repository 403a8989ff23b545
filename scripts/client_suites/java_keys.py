"""Check that `flowstone produce` and the Java client write the same keys to the same partitions."""

from __future__ import annotations

import json
import random
import sys

from scripts.client_suites.java_tools import JVM_FLAGS, TOOLS
from scripts.client_suites.suite import CheckFailed, Server, Suite, Unavailable, run
from scripts.fetch_kafka import FetchError, java_command, kafka_classpath

KEYS = 10_000
KEY_CHARACTERS_MAX = 40  # every remainder of murmur2's blocks of four bytes, many times
PARTITIONS = 7
SEPARATOR = "|"
# Of one to four bytes in UTF-8, and none that ends a line or the key.
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789-_.: ÄÖÜßéñ漢字😀"
DIFFERENCES_SHOWN = 5


def make_keys() -> list[str]:
    chance = random.Random(7)
    keys: set[str] = set()
    while len(keys) < KEYS:
        keys.add("".join(chance.choices(ALPHABET, k=chance.randint(1, KEY_CHARACTERS_MAX))))
    return sorted(keys)


def run_suite(suite: Suite, server: Server) -> None:
    try:
        java = [java_command(), *JVM_FLAGS, "-Dfile.encoding=UTF-8", "-cp", kafka_classpath()]
    except FetchError as error:
        raise Unavailable(str(error)) from error
    keys = make_keys()
    lines = "".join(f"{key}{SEPARATOR}x\n" for key in keys)

    def from_java() -> None:
        properties = ("--reader-property", "parse.key=true", "--reader-property", f"key.separator={SEPARATOR}")
        arguments = ("--bootstrap-server", server.address, "--topic", "from-java", *properties)
        run([*java, f"{TOOLS}.ConsoleProducer", *arguments], input=lines)

    def from_us() -> None:
        told = _flowstone(server, "produce", "from-us", "--key-separator", SEPARATOR, input=lines)
        if told != f"stored {KEYS} records\n":
            raise CheckFailed(told)

    def compare() -> None:
        ours, theirs = _partitions(server, "from-us"), _partitions(server, "from-java")
        if set(ours) != set(keys) or set(theirs) != set(keys):
            raise CheckFailed(f"{len(ours)} keys from us and {len(theirs)} from Java, {KEYS} were sent")
        differing = [key for key in keys if ours[key] != theirs[key]]
        if differing:
            raise CheckFailed(f"{len(differing)} keys differ, such as {differing[:DIFFERENCES_SHOWN]}")

    for topic in ("from-java", "from-us"):
        _flowstone(server, "topic", "create", topic, "--partitions", str(PARTITIONS))
    suite.check(f"the Java client sends {KEYS:,} keys", from_java)
    suite.check(f"flowstone produce sends {KEYS:,} keys", from_us)
    suite.check("every key is in the same partition", compare)


def _flowstone(server: Server, *arguments: str, input: str = "") -> str:
    variables = {"FLOWSTONE_BOOTSTRAP": server.address, "PYTHONUTF8": "1"}
    return run([sys.executable, "-m", "flowstone.cli", *arguments], input=input, variables=variables)


def _partitions(server: Server, topic: str) -> dict[str, int]:
    records = map(json.loads, _flowstone(server, "consume", topic, "--json").splitlines())
    return {record["key"]: record["partition"] for record in records}
