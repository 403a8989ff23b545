"""The examples do what they say: each is run on one broker, and held to what it returns and to what its page shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flowstone
from examples.patterns import (
    at_least_once,
    at_most_once,
    dedupe,
    even_odd_offsets,
    event_sourcing,
    ordered_by_key,
    publish_subscribe,
    replay_from_time,
    request_response,
    shared_by_key,
    shared_even_odd,
    shared_threads,
    shared_work_queue,
    threads_one_partition,
    work_queue,
)
from tests.support.pages import DOCS, ROOT, assert_prints, assert_shows, is_same, printed_by

PAGE = DOCS / "patterns.md"
EXAMPLES = sorted(
    path for path in (ROOT / "examples" / "patterns").glob("*.py") if "stage.main(run)" in path.read_text()
)
PROGRAM_TIMEOUT_S = 60

Run = Callable[[ModuleType], Any]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with flowstone.Broker() as broker:
        yield broker.bootstrap


@pytest.fixture
def run(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example, which must print what the page says it prints; what it returns."""

    def run(example: ModuleType) -> Any:
        result = example.run(bootstrap)
        assert_prints(printed_by(PAGE, example.__name__), capsys.readouterr().out, is_same)
        return result

    return run


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_lines_on_the_page_are_the_examples_own(example: Path) -> None:
    assert_shows(PAGE, example)


def test_an_example_runs_as_a_program_on_a_broker_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", even_odd_offsets.__name__],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")},
        timeout=PROGRAM_TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_prints(printed_by(PAGE, even_odd_offsets.__name__), done.stdout, is_same)


def test_each_task_of_a_work_queue_is_done_once(run: Run) -> None:
    result = run(work_queue)
    assert result.done == Counter(str(task) for task in range(2 * work_queue.TASKS))
    assert sorted(result.by_all.values()) == [6, 6, 12], "four partitions among three workers"
    assert sorted(result.by_those_who_stayed.values()) == [12, 12]


def test_a_shared_work_queue_is_faster_than_its_one_partition(run: Run) -> None:
    result = run(shared_work_queue)
    assert result.done == Counter(str(task).encode() for task in range(shared_work_queue.TASKS))
    assert len(result.by_worker) > 1
    assert result.shared_s < result.group_s / 2


def test_a_shared_partition_is_ordered_by_key_also_after_a_failure(run: Run) -> None:
    result = run(shared_by_key)
    assert all(numbers == list(range(shared_by_key.PER_KEY)) for numbers in result.by_key.values())
    assert result.most_at_once > 1


def test_threads_that_share_a_partition_do_not_wait_for_a_slow_record(run: Run) -> None:
    result = run(shared_threads)
    assert result.handled == list(range(shared_threads.RECORDS))
    assert result.others_s < result.slow_s


def test_two_workers_that_share_a_partition_do_all_of_it_when_one_stops(run: Run) -> None:
    result = run(shared_even_odd)
    assert sorted(result.first + result.second) == list(range(shared_even_odd.RECORDS))
    assert result.first


@pytest.mark.parametrize("example", [work_queue, ordered_by_key])
def test_no_worker_looks_up_where_its_group_starts(example: ModuleType) -> None:
    """A lookup that outlives a rebalance makes librdkafka hand out a record twice; see `stage.start_group`."""
    with flowstone.Broker() as broker, broker.fault("ListOffsets", delay_ms=1) as lookups:
        example.run(broker.bootstrap)
    assert lookups.hits == 0


def test_every_subscriber_gets_every_record_from_one_copy(run: Run) -> None:
    orders = ["tea", "coffee", "cake", "jam", "bread"]
    assert run(publish_subscribe) == publish_subscribe.Result(
        billing=orders[:3], billing_later=orders[3:], shipping=orders, audit=orders, stored=len(orders)
    )


def test_a_group_set_back_to_a_time_reads_what_came_since(run: Run) -> None:
    result = run(replay_from_time)
    assert len(result.at_first) == 3 * replay_from_time.READINGS_PER_HOUR
    assert result.again == [f"1 h ago, reading {number}" for number in range(replay_from_time.READINGS_PER_HOUR)]


def test_answers_find_their_questions_and_late_ones_are_passed_over(run: Run) -> None:
    result = run(request_response)
    assert result == request_response.Result(answers=["4", "9", "16", "25"], timed_out=True, late=1)


def test_the_events_of_a_key_are_handled_in_order_by_one_worker(run: Run) -> None:
    result = run(ordered_by_key)
    assert result.events == {account: list(range(ordered_by_key.EVENTS)) for account in ordered_by_key.ACCOUNTS}
    assert all(len(workers) == 1 for workers in result.workers.values())
    assert len(set.union(*result.workers.values())) == 2, "both have work"


def test_threads_commit_up_to_the_first_unfinished_record_and_a_kill_skips_nothing(run: Run) -> None:
    result = run(threads_one_partition)
    hung, ahead = threads_one_partition.HANGS_AT, threads_one_partition.AHEAD_MAX
    assert result.committed == hung
    assert result.skipped == []
    assert result.repeated == list(range(hung + 1, hung + ahead))


def test_even_and_odd_offsets_are_handled_apart(run: Run) -> None:
    result = run(even_odd_offsets)
    numbers = list(range(even_odd_offsets.RECORDS))
    assert result.even == numbers[::2]
    assert result.odd_before == numbers[1:10:2]
    assert result.odd_after == numbers[11::2]


def test_at_most_once_loses_exactly_what_was_committed_and_not_done(run: Run) -> None:
    result = run(at_most_once)
    assert result == at_most_once.Result(committed=15, lost=[12, 13, 14], repeated=[])


def test_at_least_once_repeats_exactly_what_was_done_and_not_committed(run: Run) -> None:
    result = run(at_least_once)
    assert result == at_least_once.Result(committed=10, lost=[], repeated=[10, 11])


def test_a_payment_that_comes_twice_is_made_once(run: Run) -> None:
    result = run(dedupe)
    assert result.balance == sum(payment["cents"] for payment in dedupe.PAYMENTS)
    assert result.passed_over == [dedupe.HANGS_AFTER, len(dedupe.SENT) - 1], "redelivered, and sent twice"


def test_an_aggregate_is_rebuilt_from_its_compacted_states_and_goes_on_with_the_next_event(run: Run) -> None:
    result = run(event_sourcing)
    assert result.rebuilt == {"alice": 380, "bob": 900, "carol": 70}
    assert result.balances == {"alice": 400, "carol": 70}, "bob's account was closed"
    assert result.events_read_again == 0
