"""How many new idempotent producers one connection, one address and all together may begin."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from flowstone.broker.requests import producer_admission
from flowstone.broker.requests.producer_admission import ProducerAdmission
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_state import PRODUCER_IDLE_MS, PRODUCERS_MAX, ProducerStates
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.record_batch import Record, build_batch, parse_header

ONE, OTHER = "10.0.0.1:4000", "10.0.0.2:4000"


class Log:
    """A partition, as far as it is looked at."""

    def __init__(self) -> None:
        self.producers = ProducerStates()


class World:
    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.logs = [Log(), Log()]
        self.admission = ProducerAdmission(self.clock, lambda: self.logs)  # type: ignore[arg-type, return-value]

    def produce(self, producer_id: int, peer: str = ONE, *, sequence: int = 0, log: int = 0) -> None:
        """A batch of the producer, appended if it is let in."""
        batch = build_batch(
            [Record(0, 0, None, b"v")], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        partition: Any = self.logs[log]
        self.admission.check(partition, memoryview(batch), peer)
        partition.producers.apply(parse_header(batch), 0, self.clock.time_ms())

    def taken(self, ids: range, peer: str = ONE, **more: int) -> int:
        """How many of these new producers are let in."""
        count = 0
        for producer_id in ids:
            with contextlib.suppress(ApiError):
                self.produce(producer_id, peer, **more)
                count += 1
        return count


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for name, value in {
        "CONNECTION_NEW_IDS_MAX": 5,
        "ADDRESS_NEW_IDS_MAX": 12,
        "ADDRESS_NEW_ENTRIES_MAX": 15,
        "PRODUCERS_TOTAL_MAX": 30,
    }.items():
        monkeypatch.setattr(producer_admission, name, value)
    return World()


def test_a_connection_has_a_number_of_new_ids_and_gets_more_with_time(world: World) -> None:
    assert world.taken(range(100)) == 5
    world.clock.advance(0.1)
    assert world.taken(range(100, 200)) == 1


def test_another_connection_of_another_address_is_not_touched_by_it(world: World) -> None:
    world.taken(range(100))
    assert world.taken(range(200, 203), OTHER) == 3


def test_many_connections_of_one_address_share_its_number(world: World) -> None:
    assert sum(world.taken(range(at * 10, at * 10 + 10), f"10.0.0.1:{4000 + at}") for at in range(9)) == 12


def test_a_known_producer_is_always_let_in(world: World) -> None:
    world.produce(7)
    world.taken(range(100, 200))
    for sequence in range(1, 50):
        world.produce(7, sequence=sequence)


def test_batches_without_a_producer_cost_nothing(world: World) -> None:
    batch = memoryview(build_batch([Record(0, 0, None, b"v")]))
    for _ in range(100):
        world.admission.check(world.logs[0], batch, ONE)  # type: ignore[arg-type]
    assert world.taken(range(100)) == 5


def test_one_id_in_many_partitions_counts_once(world: World) -> None:
    for at in range(2, 12):
        world.logs.append(Log())
        world.produce(7, log=at)
    assert world.taken(range(100, 200)) == 4


def test_the_lowest_producer_id_is_counted_as_any_other(world: World) -> None:
    for at in range(2, 12):
        world.logs.append(Log())
        world.produce(0, log=at)
    assert world.taken(range(100, 200)) == 4


def test_one_address_cannot_fill_all_tables_with_few_ids_in_many_partitions(world: World) -> None:
    world.logs = [Log() for _ in range(40)]
    taken = 0
    for at in range(40):
        taken += world.taken(range(4), log=at)
    assert taken < 20


def test_idle_producers_make_way_when_there_are_too_many_in_all(world: World) -> None:
    for at in range(6):
        assert world.taken(range(at * 10, at * 10 + 5), f"10.0.1.{at}:4000") == 5
    world.clock.advance(1.0)
    assert world.taken(range(900, 903), OTHER) == 0
    world.clock.advance(PRODUCER_IDLE_MS / 1000)
    assert world.taken(range(910, 913), OTHER) == 3


def test_producers_let_in_since_the_last_count_are_part_of_the_total(world: World) -> None:
    assert sum(world.taken(range(at * 10, at * 10 + 5), f"10.0.1.{at}:4000") for at in range(7)) == 30


def test_producers_of_all_partitions_are_counted_again_after_a_second(world: World) -> None:
    for at in range(6):
        world.taken(range(at * 10, at * 10 + 5), f"10.0.1.{at}:4000")
    world.logs = [Log()]
    assert world.taken(range(100, 105), OTHER) == 0
    world.clock.advance(producer_admission.TOTAL_COUNT_INTERVAL_S)
    assert world.taken(range(100, 105), OTHER) == 5


def test_connections_are_remembered_up_to_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_admission, "ALLOWANCES_MAX", 6)  # a connection and its address take three
    world.taken(range(100))
    world.taken(range(200, 205), OTHER)
    assert world.taken(range(300, 305)) == 0
    for at in range(2):
        world.taken(range(at * 10 + 400, at * 10 + 405), f"10.0.1.{at}:4000")
    assert world.taken(range(300, 305)) == 5


def test_as_many_connections_and_addresses_are_remembered_as_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_admission, "ALLOWANCES_MAX", 6)
    world.taken(range(100))
    world.taken(range(200, 205), OTHER)
    assert world.taken(range(300, 305)) == 0
    assert world.taken(range(400, 405), OTHER) == 0


def test_refusals_are_logged_once_a_minute(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.taken(range(20))
    assert len(caplog.records) == 1
    world.clock.advance(producer_admission.WARNING_INTERVAL_S - 1)
    world.taken(range(100, 2000))
    assert len(caplog.records) == 1
    world.clock.advance(1)
    world.taken(range(2000, 4000))
    assert len(caplog.records) == 2
    assert "new idempotent producers of 10.0.0.1:4000 are refused" in caplog.text


def test_a_connection_that_goes_on_asking_is_not_forgotten_for_a_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_admission, "ALLOWANCES_MAX", 6)
    world.taken(range(100))
    world.taken(range(200, 205), OTHER)
    world.taken(range(300, 305))
    world.taken(range(400, 405), "10.0.1.1:4000")
    assert world.taken(range(300, 305)) == 0


def test_a_refused_producer_begins_with_its_first_batch_only(world: World) -> None:
    world.taken(range(100))
    with pytest.raises(ApiError):
        world.produce(500)
    world.clock.advance(1.0)
    with pytest.raises(ApiError, match="sent before was refused"):
        world.produce(500, sequence=1)
    world.produce(500)
    world.produce(500, sequence=1)


def test_a_producer_may_go_on_anywhere_once_no_request_can_follow_the_refused_one(world: World) -> None:
    world.clock.advance(1000.0)
    world.taken(range(100))
    world.clock.advance(producer_admission.GAP_AFTER_REFUSAL_S - 1)
    with pytest.raises(ApiError, match="sent before was refused"):
        world.produce(500, sequence=1)
    world.clock.advance(producer_admission.GAP_AFTER_REFUSAL_S)
    world.produce(500, sequence=1)


def test_ids_that_are_handed_out_count_too(world: World) -> None:
    for _ in range(5):
        world.admission.check_new_id(ONE)
    with pytest.raises(ApiError) as refused:
        world.admission.check_new_id(ONE)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_what_one_address_can_take_before_its_first_producers_are_idle_leaves_space_for_others() -> None:
    idle_s = PRODUCER_IDLE_MS / 1000
    ids = producer_admission.ADDRESS_NEW_IDS_MAX + idle_s * producer_admission.ADDRESS_NEW_IDS_PER_S
    entries = producer_admission.ADDRESS_NEW_ENTRIES_MAX + idle_s * producer_admission.ADDRESS_NEW_ENTRIES_PER_S
    assert ids < PRODUCERS_MAX
    assert entries < producer_admission.PRODUCERS_TOTAL_MAX
