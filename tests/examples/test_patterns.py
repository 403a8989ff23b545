"""The examples do what they say: each is run as it stands, on one broker, and held to what it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import flowstone
from examples.patterns import (
    at_least_once,
    at_most_once,
    dedupe,
    even_odd_offsets,
    ordered_by_key,
    publish_subscribe,
    replay_from_time,
    request_response,
    threads_one_partition,
    work_queue,
)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with flowstone.Broker() as broker:
        yield broker.bootstrap


def test_each_task_of_a_work_queue_is_done_once(bootstrap: str) -> None:
    result = work_queue.run(bootstrap)
    assert result.done == Counter(str(task) for task in range(2 * work_queue.TASKS))
    assert sorted(result.by_all.values()) == [6, 6, 12], "four partitions among three workers"
    assert sorted(result.by_those_who_stayed.values()) == [12, 12]


def test_every_subscriber_gets_every_record_from_one_copy(bootstrap: str) -> None:
    orders = ["tea", "coffee", "cake", "jam", "bread"]
    assert publish_subscribe.run(bootstrap) == publish_subscribe.Result(
        billing=orders[:3], billing_later=orders[3:], shipping=orders, audit=orders, stored=len(orders)
    )


def test_a_group_set_back_to_a_time_reads_what_came_since(bootstrap: str) -> None:
    result = replay_from_time.run(bootstrap)
    assert len(result.at_first) == 3 * replay_from_time.READINGS_PER_HOUR
    assert result.again == [f"1 hours ago, reading {number}" for number in range(replay_from_time.READINGS_PER_HOUR)]


def test_answers_find_their_questions_and_late_ones_are_passed_over(bootstrap: str) -> None:
    result = request_response.run(bootstrap)
    assert result == request_response.Result(answers=["4", "9", "16", "25"], timed_out=True, late=1)


def test_the_events_of_a_key_are_handled_in_order_by_one_worker(bootstrap: str) -> None:
    result = ordered_by_key.run(bootstrap)
    assert result.events == {account: list(range(ordered_by_key.EVENTS)) for account in ordered_by_key.ACCOUNTS}
    assert all(len(workers) == 1 for workers in result.workers.values())
    assert len(set.union(*result.workers.values())) == 2, "both have work"


def test_threads_commit_up_to_the_first_unfinished_record_and_a_kill_skips_nothing(bootstrap: str) -> None:
    result = threads_one_partition.run(bootstrap)
    hung, ahead = threads_one_partition.HANGS_AT, threads_one_partition.AHEAD_MAX
    assert result.committed == hung
    assert result.skipped == []
    assert result.repeated == list(range(hung + 1, hung + ahead))


def test_even_and_odd_offsets_are_handled_apart(bootstrap: str) -> None:
    result = even_odd_offsets.run(bootstrap)
    numbers = list(range(even_odd_offsets.RECORDS))
    assert result.even == numbers[::2]
    assert result.odd_before == numbers[1:10:2]
    assert result.odd_after == numbers[11::2]


def test_at_most_once_loses_exactly_what_was_committed_and_not_done(bootstrap: str) -> None:
    result = at_most_once.run(bootstrap)
    assert result == at_most_once.Result(committed=15, lost=[12, 13, 14], repeated=[])


def test_at_least_once_repeats_exactly_what_was_done_and_not_committed(bootstrap: str) -> None:
    result = at_least_once.run(bootstrap)
    assert result == at_least_once.Result(committed=10, lost=[], repeated=[10, 11])


def test_a_payment_that_comes_twice_is_made_once(bootstrap: str) -> None:
    result = dedupe.run(bootstrap)
    assert result.balance == sum(payment["cents"] for payment in dedupe.PAYMENTS)
    assert result.passed_over == [dedupe.HANGS_AFTER, len(dedupe.SENT) - 1], "redelivered, and sent twice"
