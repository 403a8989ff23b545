"""Dead letters of a broker that is killed before, amid or after a write: each rejected record has one letter.

A member rejects records in two rounds, so that several batches of letters are under way, and gives up a third record by
releasing it too often. A few crash points run here; `FLOWSTONE_FAULTS_LETTER_KILLS=all` takes every write that the
broker makes of letters and share state, before, half done, and after.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowstone.wire import messages as m
from flowstone.wire.record_batch import Record, build_batch, decode_records
from tests.support.broker_process import UP, BrokerProcess
from tests.support.sharing.share_client import ACCEPT, REJECT, RELEASE, Sharer, begin, topic_id_of
from tests.support.wire_client import Client, Closed, whole_batches

from .sabotaged_letters import BUGS

TOPIC, QUEUE, GROUP_RESOURCE = "t", "dlq.t", 32
RECORDS = 9
SETTINGS = {"share.coordinator.state.topic.num.partitions": "1", "group.share.delivery.count.limit": "2"}
GROUP_SETTINGS = {
    "errors.deadletterqueue.topic.name": QUEUE,
    "errors.deadletterqueue.copy.record.enable": "true",
}
# Records 0 to 2 and 4 are rejected, 6 is given up; the others are accepted.
LETTERS = {0, 1, 2, 4, 6}
LETTERS_TIMEOUT_S = 5.0
# More writes than one life has.
WRITES_MAX = 40
ALL = os.environ.get("FLOWSTONE_FAULTS_LETTER_KILLS") == "all"
# The intention, the copy and the archiving of the first batch of letters are the writes 3, 4 and 5.
SOME = [(3, "after"), (4, "half"), (4, "after"), (5, "before")]
# The write after which the broker is killed must be the copy or, for the last bug, the archiving. Acknowledgements are
# written meanwhile, so that its number differs by one from run to run.
FOUND_AFTER = (4, 5, 3)
FOUND_HERE = ("store_nothing_before_the_copy", "repeat_with_another_producer", "archive_before_the_copy")


def killed_at(*point: object) -> Sequence[str]:
    return [sys.executable, str(Path(__file__).with_name("sabotaged_letters.py")), ":".join(map(str, point))]


def start(data: Path, program: Sequence[str] = UP) -> BrokerProcess:
    return BrokerProcess(data, settings=SETTINGS, program=program)


def prepare(data: Path) -> None:
    with start(data) as broker, Client(broker.address) as client:
        client.create_topic(TOPIC)
        client.create_topic(QUEUE, errors_deadletterqueue_group_enable="true")
        configs = [
            m.IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
            for name, value in GROUP_SETTINGS.items()
        ]
        resource = m.IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name="g", configs=configs
        )
        answer = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        assert answer.responses[0].error_code == 0
        begin(client, topic_id_of(client, TOPIC), start_offset=0)
        client.produce(TOPIC, build_batch([Record(each, 1, b"k", b"%d" % each) for each in range(RECORDS)]))


def work(client: Client) -> None:
    """Accept, reject and release what is delivered, until nothing more is."""
    member = Sharer(client, topic_id_of(client, TOPIC))
    quiet = 0
    while quiet < 3:
        got = member.take(wait_ms=150)
        quiet = 0 if got else quiet + 1
        rounds = [[each for each in got if each.offset <= 3], [each for each in got if each.offset > 3]]
        for some in rounds:
            if some:
                member.acknowledge(*((each.offset, each.offset, kind(each.offset)) for each in some))


def kind(offset: int) -> int:
    if offset == 6:
        return RELEASE
    return REJECT if offset in LETTERS else ACCEPT


def letters(client: Client) -> list[Record]:
    """All letters, once there are enough of them or none comes any more."""
    return letters_so_far(client, len(LETTERS), LETTERS_TIMEOUT_S)


def letters_so_far(client: Client, count: int, timeout_s: float) -> list[Record]:
    until = time.monotonic() + timeout_s
    while True:
        data = bytes(client.fetch(QUEUE, 0).records)
        found = [record for batch in whole_batches(data) for record in decode_records(batch)]
        if len(found) >= count or time.monotonic() > until:
            return found
        time.sleep(0.05)


def live(data: Path, program: Sequence[str], *, finish: bool) -> bool:
    """Work on a broker until it is killed, or there is nothing left; return whether it was killed."""
    try:
        with start(data, program) as broker, Client(broker.address) as client:
            work(client)
            if finish:
                check(letters(client))
            return False
    except (Closed, OSError):
        return True


def check(found: list[Record]) -> None:
    counted = Counter(int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in found)
    assert counted == Counter(LETTERS), f"letters by offset: {counted}"
    assert all(record.value == dict(record.headers)["__dlq.errors.offset"] for record in found)


def run(data: Path, *point: object) -> bool:
    """Have the broker killed at a point, and check the letters after another start; return whether it was killed."""
    prepare(data)
    was_killed = live(data, killed_at(*point), finish=False)
    again = killed_at(0, "never", *point[2:])
    assert not live(data, again, finish=True)
    return was_killed


@pytest.mark.skipif(ALL, reason="every crash point is tried")
@pytest.mark.parametrize(("number", "moment"), SOME)
def test_a_killed_broker_writes_each_letter_once(tmp_path: Path, number: int, moment: str) -> None:
    assert run(tmp_path, number, moment)


@pytest.mark.skipif(not ALL, reason="long: FLOWSTONE_FAULTS_LETTER_KILLS=all")
@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_each_letter_is_written_once_whenever_the_broker_is_killed(tmp_path: Path, moment: str) -> None:
    for number in itertools.count(1):
        if not run(tmp_path / str(number), number, moment):
            break
        print(f"killed {moment} write {number}")
    assert 8 < number < WRITES_MAX


def test_a_broker_killed_twice_writes_each_letter_once(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert live(tmp_path, killed_at(4, "after"), finish=False)
    assert live(tmp_path, killed_at(1, "after"), finish=False)
    assert not live(tmp_path, UP, finish=True)


def run_some(data: Path, bug: str) -> None:
    for number in FOUND_AFTER:
        run(data / str(number), number, "after", bug)


@pytest.mark.parametrize("bug", FOUND_HERE)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    with pytest.raises(AssertionError, match="letters by offset"):
        run_some(tmp_path, bug)


def test_every_planted_bug_is_tried() -> None:
    assert {*FOUND_HERE, "forget_what_was_given_up"} == set(BUGS)  # test_answered_rejections has the last one
