"""The checker itself, on small histories: each kind of anomaly is found, and nothing else is called one."""

from __future__ import annotations

from flowstone.types import TopicPartition

from .checker import ACKS_ALL, Fault, History, ObservedLog, Origin, make_value, origin_of

PARTITION = TopicPartition("orders", 0)


def log_of(*origins: Origin, start: int = 0, end: int | None = None) -> dict[TopicPartition, ObservedLog]:
    records = [(offset, make_value(origin)) for offset, origin in enumerate(origins, start)]
    return {PARTITION: ObservedLog(start, start + len(origins) if end is None else end, records)}


def history_of(count: int, *, acks: int = ACKS_ALL, acknowledged: int | None = None) -> tuple[History, list[Origin]]:
    history = History()
    origins = [history.next_origin(PARTITION, "p") for _ in range(count)]
    for offset, origin in enumerate(origins[:acknowledged]):
        history.acknowledge(PARTITION, offset, origin, acks)
    history.life += 1
    return history, origins


def kinds(history: History, logs: dict[TopicPartition, ObservedLog], fault: Fault = Fault.KILL) -> list[str]:
    return [anomaly.kind for anomaly in history.check(logs, fault)]


def test_a_value_names_its_origin_and_no_other_bytes_do() -> None:
    value = make_value(Origin("p", 7))
    assert origin_of(value) == Origin("p", 7)
    assert origin_of(value[:-1] + b"!") is None
    assert origin_of(value[:-1]) is None
    assert origin_of(b"") is None


def test_everything_acknowledged_and_there_is_good() -> None:
    history, origins = history_of(5)
    assert kinds(history, log_of(*origins)) == []
    assert kinds(history, log_of(*origins)) == []


def test_what_was_never_answered_may_be_there_or_not() -> None:
    for kept in (3, 4, 5):
        history, origins = history_of(5, acknowledged=3)
        assert kinds(history, log_of(*origins[:kept])) == []


def test_an_acknowledged_record_that_is_gone_is_a_lost_write() -> None:
    history, origins = history_of(5)
    assert kinds(history, log_of(*origins[:4])) == ["lost write"]


def test_what_was_acknowledged_without_an_offset_must_be_somewhere() -> None:
    for kept, expected in ((5, []), (4, ["lost write"])):
        history, origins = history_of(5, acknowledged=4)
        history.acknowledge(PARTITION, None, origins[4], ACKS_ALL)
        assert kinds(history, log_of(*origins[:kept])) == expected
    history = History()
    history.acknowledge(PARTITION, None, history.next_origin(PARTITION, "p"), ACKS_ALL)
    assert kinds(history, {}) == ["lost partition"]


def test_acks_1_is_no_promise_for_a_power_loss_but_is_one_for_a_kill() -> None:
    for fault, expected in ((Fault.POWER_LOSS, []), (Fault.KILL, ["lost write"])):
        history, origins = history_of(5, acks=1)
        assert kinds(history, log_of(*origins[:4]), fault) == expected


def test_an_offset_lost_with_the_power_may_be_given_again() -> None:
    history, origins = history_of(5, acks=1)
    other = history.next_origin(PARTITION, "q")
    history.acknowledge(PARTITION, 4, other, ACKS_ALL)
    assert kinds(history, log_of(*origins[:4], other), Fault.POWER_LOSS) == []


def test_an_offset_acknowledged_twice_has_two_values() -> None:
    history, origins = history_of(5)
    other = history.next_origin(PARTITION, "q")
    history.acknowledge(PARTITION, 4, other, ACKS_ALL)
    assert "two values at one offset" in kinds(history, log_of(*origins))


def test_another_value_at_an_acknowledged_offset_is_an_altered_write() -> None:
    history, origins = history_of(4)
    other = history.next_origin(PARTITION, "q")
    assert kinds(history, log_of(*origins[:3], other)) == ["altered write"]


def test_a_record_nobody_sent_is_a_phantom() -> None:
    history, origins = history_of(3)
    assert kinds(history, log_of(*origins, Origin("p", 3))) == ["phantom"]


def test_a_record_twice_is_a_duplicate() -> None:
    history, origins = history_of(3)
    assert kinds(history, log_of(*origins, origins[-1])) == ["duplicate"]


def test_a_value_left_out_between_two_is_found_though_neither_was_acknowledged() -> None:
    history, origins = history_of(3, acknowledged=0)
    assert kinds(history, log_of(origins[0], origins[2])) == ["skipped value"]


def test_a_gap_in_offsets_is_a_hole() -> None:
    history, origins = history_of(2, acknowledged=0)
    records = [(0, make_value(origins[0])), (2, make_value(origins[1]))]
    assert kinds(history, {PARTITION: ObservedLog(0, 3, records)}) == ["hole"]


def test_an_end_that_cannot_be_read_is_found() -> None:
    history, origins = history_of(3, acknowledged=2)
    assert kinds(history, log_of(*origins, end=4)) == ["unreadable end"]


def test_what_a_consumer_saw_may_not_go() -> None:
    history, origins = history_of(3, acknowledged=0)
    history.see(PARTITION, 2, make_value(origins[2]))
    assert kinds(history, log_of(*origins[:2]), Fault.POWER_LOSS) == ["taken back"]


def test_what_one_check_has_read_the_next_one_expects() -> None:
    history, origins = history_of(3, acknowledged=0)
    assert kinds(history, log_of(*origins)) == []
    assert kinds(history, log_of(*origins[:2]), Fault.POWER_LOSS) == ["taken back"]


def test_a_partition_that_cannot_be_read_is_lost() -> None:
    history, _ = history_of(3)
    assert kinds(history, {}) == ["lost partition"]
