"""`flowstone cluster features`: transaction.version changes under a transactional producer that works."""

from __future__ import annotations

import json
from collections.abc import Iterator

import confluent_kafka as ck
import pytest

import flowstone
from tests.unit.cli.conftest import Run

TIMEOUT_S = 20
FEATURE = "transaction.version"


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker of its own: the level is the whole cluster's."""
    with flowstone.Broker() as broker:
        broker.create_topic("orders")
        yield broker.bootstrap


def test_the_level_goes_down_and_up_while_transactions_go_on(run: Run, bootstrap: str) -> None:
    def features(*arguments: str) -> str:
        result = run("cluster", "features", *arguments, "--bootstrap", bootstrap)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    def described() -> dict[str, int]:
        told = json.loads(features("describe", "--json"))["features"]
        (found,) = (each for each in told if each["feature"] == FEATURE)
        return {name: found[name] for name in ("level", "supported_min", "supported_max")}

    producer = ck.Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "linger.ms": 0, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    assert described() == {"level": 2, "supported_min": 0, "supported_max": 2}
    for change, level in (("downgrade", 1), ("downgrade", 0), ("upgrade", 2), ("downgrade", 0), ("upgrade", 1)):
        producer.begin_transaction()
        producer.produce("orders", f"at {level}".encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert features(change, f"{FEATURE}={level}") == f"{FEATURE} is now at level {level}\n"
        assert described()["level"] == level
        producer.commit_transaction(TIMEOUT_S)
    table = flowstone.read("orders", columns=["value"], read_committed=True, bootstrap=bootstrap)
    assert [bytes(each) for each in table["value"].to_pylist()] == [b"at 1", b"at 0", b"at 2", b"at 0", b"at 1"]


def test_a_level_that_is_not_supported_is_refused(run: Run, bootstrap: str) -> None:
    result = run("cluster", "features", "upgrade", f"{FEATURE}=3", "--bootstrap", bootstrap)
    assert result.returncode == 1
    assert result.stderr.startswith("flowstone: the broker refused: ")
    assert result.stderr.count("\n") == 1
