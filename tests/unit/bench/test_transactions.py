"""The transactions benchmark: what it counts, what it refuses to count, and its gates."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bench import wire
from bench.cases import Case
from bench.load import collect, started
from bench.modes import FLOWSTONE, FLUSHED, KAFKA, MODES, NOT_FLUSHED
from bench.servers import Flowstone, ServerError
from bench.topics import RoundFailed, fresh_topic
from bench.transactions import load, plain, reads
from bench.transactions.__main__ import FULL, QUICK, catalogue
from bench.transactions.gates import CROWD, PACED, PRODUCE, READ, verdicts
from bench.transactions.load import Share, TransactionLoad, run_round
from bench.workers import Load

LOAD = TransactionLoad(records=3, partitions=2, seconds=0.2, producers=2)


@pytest.fixture(scope="module")
def broker() -> Iterator[Flowstone]:
    with Flowstone(NOT_FLUSHED.settings[FLOWSTONE]) as server:
        yield server


def test_a_round_has_the_rate_and_latencies_of_transactions_that_can_be_read(broker: Flowstone) -> None:
    figures = run_round(broker, LOAD)
    assert figures["transactions_per_s"] > 0
    assert 0 < figures["commit_p50_ms"] <= figures["commit_p99_ms"] <= figures["transaction_p99_ms"]
    assert figures["broker_cpu_ms_per_transaction"] > 0


def test_a_paced_producer_waits_between_its_transactions(broker: Flowstone) -> None:
    paced = TransactionLoad(records=1, partitions=1, seconds=0.9, producers=2, interval_s=0.3)
    assert run_round(broker, paced)["transactions_per_s"] <= 2 / 0.3 * 1.5


def test_a_record_that_cannot_be_read_fails_the_round(broker: Flowstone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "CHECK_TIMEOUT_SECONDS", 1.0)
    with fresh_topic(broker, 1) as topic:
        work = partial(load.check, broker.address, LOAD, topic, 1)
        with pytest.raises(RoundFailed, match="0 of 1 committed records"), started(work, 1) as pipes:
            collect(pipes)


def test_an_aborted_record_is_not_counted(broker: Flowstone) -> None:
    with fresh_topic(broker, 1) as topic:
        producer = load.new_producer(broker.address, topic)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        producer.flush(10)
        producer.abort_transaction(10)
        producer.begin_transaction()
        producer.produce(topic, b"committed", partition=0)
        producer.commit_transaction(10)
        assert load.count_committed(broker.address, topic, 1, expected=1) == 1


def test_the_cost_of_read_committed_is_compared_with_that_of_read_uncommitted(broker: Flowstone) -> None:
    figures = reads.run_round(broker, transactions=40, fetch_bytes=16_000, fetches=5)
    committed, uncommitted = (figures[f"{name}_cpu_us_per_fetch"] for name in ("committed", "uncommitted"))
    assert figures["committed_to_uncommitted"] == pytest.approx(committed / uncommitted)


def test_shares_are_joined_from_the_first_start_to_the_last_end() -> None:
    shares = [Share(1.0, 4.0, array("d", [0.1]), array("d", [0.2])), Share(2.0, 5.0, array("d", [0.3]))]
    whole = load.joined(shares)
    assert (whole.started, whole.ended, list(whole.commits), list(whole.transactions)) == (1.0, 5.0, [0.1, 0.3], [0.2])


def case(mode: str, rate: float, p50_ms: float) -> Case:
    ours, theirs = {"transactions_per_s": rate, "commit_p50_ms": p50_ms}, {"transactions_per_s": 1, "commit_p50_ms": 1}
    return Case(PRODUCE, mode, "x", "transactions_per_s", {FLOWSTONE: [ours], KAFKA: [theirs]})


@pytest.mark.parametrize(("mode", "rate"), [(NOT_FLUSHED.name, 1.0), (FLUSHED.name, 1.5)])
def test_throughput_and_median_latency_are_gated_by_mode(mode: str, rate: float) -> None:
    assert [each.passed for each in verdicts([case(mode, rate, 1.0)])] == [True, True]
    assert [each.passed for each in verdicts([case(mode, rate - 0.01, 1.01)])] == [False, False]


@pytest.mark.parametrize(("workload", "metrics"), [(CROWD, {"transactions_per_s"}), (PACED, {"commit_p50_ms"})])
def test_latency_is_compared_at_equal_rates(workload: str, metrics: set[str]) -> None:
    measured = case(FLUSHED.name, 9.0, 0.5)
    measured.workload = workload
    assert {each.gate.metric for each in verdicts([measured])} == metrics


def test_read_committed_is_gated_without_kafka() -> None:
    rounds = {FLOWSTONE: [{"committed_to_uncommitted": 1.11}], KAFKA: [{"committed_to_uncommitted": 2.0}]}
    (verdict,) = verdicts([Case(READ, NOT_FLUSHED.name, "x", "committed_to_uncommitted", rounds)])
    assert not verdict.passed


def test_every_size_of_transactions_is_measured_in_both_modes() -> None:
    for mode in MODES:
        for sizes in (FULL, QUICK):
            variants = [each.variant for each in catalogue(mode, sizes) if each.name != READ]
            assert variants == [
                "1 record, 1 partition",
                "10 records, 1 partition",
                "100 records, 1 partition",
                "1 record, 4 partitions",
                "10 records, 4 partitions",
                "100 records, 4 partitions",
                "100 producers, 10 records, 4 partitions",
                "100 producers, 10 records, 4 partitions, each every 2 s",
            ]


def test_plain_produce_and_fetch_are_compared_with_another_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "WARM_UP_ROUNDS", 0)
    settings = NOT_FLUSHED.settings[FLOWSTONE]
    small = Load(wire.record_batch(1_000, 100, 0), 100_000, acks=1)
    with plain.Checkout(plain.HERE, settings) as now, plain.Checkout(plain.HERE, settings) as before:
        (found,) = plain.ratios(now, before, small, rounds=1)
    assert set(found) == set(plain.COSTS)
    assert min(found.values()) > 0


def test_another_checkout_runs_its_own_code(tmp_path: Path) -> None:
    package = tmp_path / "src" / "flowstone" / "cli"
    package.mkdir(parents=True)
    for each in (package.parent / "__init__.py", package / "__init__.py"):
        each.touch()
    (package / "main.py").write_text("def main():\n    return 'this is the other one'\n")
    with pytest.raises(ServerError, match="this is the other one"), plain.Checkout(tmp_path, {}):
        pass
