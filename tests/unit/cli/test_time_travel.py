"""`topic offsets`, `branch`, `explain` and `replay` as a user meets them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.times import parse_time
from tests.unit.cli.conftest import Call, Prepare, Run

START_MS = 1_700_000_000_000
NOON = datetime(2026, 3, 2, 12, 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(http=True) as broker:
        yield broker


# Times


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", NOON),
        ("2 hours ago", NOON - timedelta(hours=2)),
        ("an hour ago", NOON - timedelta(hours=1)),
        ("90 minutes ago", NOON - timedelta(minutes=90)),
        ("1.5h ago", NOON - timedelta(minutes=90)),
        ("3 Days  AGO", NOON - timedelta(days=3)),
        ("yesterday", datetime(2026, 3, 1)),
        ("yesterday 09:00", datetime(2026, 3, 1, 9)),
        ("today 9:05", datetime(2026, 3, 2, 9, 5)),
        ("09:00:30", datetime(2026, 3, 2, 9, 0, 30)),
        ("2026-01-31", datetime(2026, 1, 31)),
    ],
)
def test_times_are_taken_as_people_give_them(text: str, wanted: datetime) -> None:
    assert parse_time("--at", text, NOON) == int(wanted.timestamp() * 1000)


def test_a_zone_is_heeded_where_one_is_given() -> None:
    assert parse_time("--at", "2026-01-31T12:00:00+00:00") == 1_769_860_800_000


@pytest.mark.parametrize(
    "text", ["", "soon", "2 fortnights ago", "hours ago", "yesterday 25:00", "99999999999 weeks ago"]
)
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandError, match="2 hours ago"):
        parse_time("--at", text, NOON)


# topic offsets


def test_offsets_at_a_time_are_those_of_the_first_records_since(call: Call, prepare: Prepare) -> None:
    prepare("at-time", *((None, str(i), START_MS + 1000 * i) for i in range(5)))
    told = json.loads(call("topic", "offsets", "at-time", "--at", START_MS + 1500, "--json"))
    assert told["partitions"] == [{"partition": 0, "offset": 2, "timestamp_ms": START_MS + 2000, "next_offset": 5}]


def test_a_partition_without_a_record_since_shows_its_end(call: Call, prepare: Prepare) -> None:
    prepare("at-end", (None, "a", START_MS))
    told = json.loads(call("topic", "offsets", "at-end", "--at", "2 hours ago", "--json"))
    assert told["partitions"] == [{"partition": 0, "offset": 1, "timestamp_ms": None, "next_offset": 1}]


def test_offsets_are_shown_to_people_as_a_table(call: Call, prepare: Prepare) -> None:
    prepare("at-table", (None, "a", START_MS))
    lines = call("topic", "offsets", "at-table", "--at", START_MS).splitlines()
    assert lines[1].split() == ["partition", "offset", "its", "time", "next", "offset"]
    assert lines[2].split()[:2] == ["0", "0"]


# branch


def test_a_branch_is_made_as_of_now(call: Call, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("b-now", ("k", "a", START_MS))
    told = json.loads(call("branch", "b-now", "b-now-dev", "--json"))
    assert (told["topic"], told["source"], told["time_ms"]) == ("b-now-dev", "b-now", None)
    assert [record.value for record in broker.records("b-now-dev")] == [b"a"]


def test_a_branch_is_made_as_of_a_time(call: Call, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("b-time", (None, "a", START_MS), (None, "b", START_MS + 1000))
    said = call("branch", f"b-time@{START_MS + 1}", "b-time-dev")
    assert said.startswith("branched b-time-dev from b-time as of ")
    assert [record.value for record in broker.records("b-time-dev")] == [b"a"]


def test_a_branch_to_a_topic_that_exists_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("b-one")
    prepare("b-two")
    assert "already exists" in refused("branch", "b-one", "b-two")


def test_a_branch_of_a_topic_that_does_not_exist_is_refused(refused: Call) -> None:
    assert "there is no topic b-nothing" in refused("branch", "b-nothing", "b-x")


def test_a_branch_at_no_time_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("b-no-time")
    assert "a time is missing" in refused("branch", "b-no-time@", "b-x")


def test_what_is_asked_over_http_says_so_where_there_is_none(run: Run) -> None:
    with flowstone.Broker() as quiet:
        quiet.create_topic("t", partitions=1)
        for command in (("branch", "t", "u"), ("explain", "t/0@0")):
            result = run(*command, "--bootstrap", quiet.bootstrap)
            assert result.returncode == 1
            assert "--http HOST:PORT" in result.stderr


# explain


def test_a_record_is_explained_in_lines(call: Call, prepare: Prepare) -> None:
    prepare("explained", ("k", "a", START_MS))
    lines = {line[:11].strip(): line[12:] for line in call("explain", "explained/0@0").splitlines()}
    assert "(CreateTime)" in lines["timestamp"]
    assert "offsets 0 to 0" in lines["batch"]
    assert ", committed, in-sync replicas [1] of [1]" in lines["safe"]


def test_a_record_held_back_by_an_open_transaction_is_explained(
    broker: flowstone.Broker, call: Call, prepare: Prepare
) -> None:
    prepare("held-back", (None, "committed before", START_MS))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "holder", "log_level": 0})
    producer.init_transactions(10)
    told = []
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("held-back", b"t")
        assert producer.flush(10) == 0
        offset = 1 + len(told)
        told.append(call("explain", f"held-back/0@{offset}"))
        end(10)
        told.append(call("explain", f"held-back/0@{offset}"))
    transactions = [next(line[12:] for line in text.splitlines() if line.startswith("transaction")) for text in told]
    assert "wait for the open transaction of producer" in transactions[0]
    assert ", transactional id holder, since " in transactions[0]
    assert "no coordinator" not in transactions[0]
    assert "(offset 1)" in transactions[0]
    assert transactions[1].startswith("committed")
    assert transactions[3].startswith("aborted")
    assert "transaction" not in call("explain", "held-back/0@0")


def test_a_record_is_explained_to_programs(call: Call, prepare: Prepare) -> None:
    prepare("explained-json", ("k", "a", START_MS))
    assert json.loads(call("explain", "explained-json/0@0", "--json"))["timestamp_ms"] == START_MS


@pytest.mark.parametrize("place", ["orders", "orders/0", "orders@1", "orders/x@1", "/0@0"])
def test_a_place_that_is_none_is_refused(refused: Call, place: str) -> None:
    assert "expected TOPIC/PARTITION@OFFSET" in refused("explain", place)


def test_an_offset_beyond_the_end_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("explained-end", (None, "a", START_MS))
    assert "was not written yet" in refused("explain", "explained-end/0@7")


# replay


def records(broker: flowstone.Broker, topic: str) -> list[tuple[object, ...]]:
    return [
        (each.partition, each.key, each.value, each.timestamp_ms, tuple(each.headers)) for each in broker.records(topic)
    ]


def test_a_replay_keeps_partitions_keys_headers_and_timestamps(
    call: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    prepare("r-source", partitions=3)
    prepare("r-target", partitions=3)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "log_level": 0})
    for i in range(300):
        producer.produce("r-source", b"v%d" % i, b"k%d" % i, timestamp=START_MS + i, headers=[("h", b"%d" % i)])
    assert producer.flush(10) == 0
    assert call("replay", "r-source", "r-target") == "replayed 300 records of r-source to r-target\n"
    assert records(broker, "r-target") == records(broker, "r-source")


def test_a_replay_of_a_range_takes_only_that(call: Call, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("r-range", *((None, str(i), START_MS + 1000 * i) for i in range(10)))
    prepare("r-range-to")
    bounds = "--from", START_MS + 3000, "--to", START_MS + 6000
    told = json.loads(call("replay", "r-range", "r-range-to", *bounds, "--json"))
    assert told == {"source": "r-range", "target": "r-range-to", "stored": 3, "resumed": False, "interrupted": False}
    assert [each.value for each in broker.records("r-range-to")] == [b"3", b"4", b"5"]


def test_a_replay_at_a_speed_keeps_the_rhythm_of_the_timestamps(
    call: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    # In one batch: where the times of its records are far apart, they are sent apart.
    prepare("r-paced")
    prepare("r-paced-to")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 100, "log_level": 0})
    for i in range(3):
        producer.produce("r-paced", str(i), timestamp=START_MS + 1000 * i)
    assert producer.flush(10) == 0
    began = time.monotonic()
    call("replay", "r-paced", "r-paced-to", "--speed", "5x")
    assert time.monotonic() - began >= 0.4
    assert records(broker, "r-paced-to") == records(broker, "r-paced")


def test_a_finished_replay_leaves_no_group_behind(call: Call, prepare: Prepare) -> None:
    prepare("r-group", (None, "a", START_MS))
    prepare("r-group-to")
    call("replay", "r-group", "r-group-to")
    assert "flowstone-replay" not in call("group", "list")


def test_an_interrupted_replay_goes_on_without_repeating_anything(
    call: Call,
    prepare: Prepare,
    spawn: Callable[..., subprocess.Popen[str]],
    broker: flowstone.Broker,
) -> None:
    prepare("r-cut", *((None, str(i), START_MS + 1000 * i) for i in range(6)))
    prepare("r-cut-to")
    slow = spawn("replay", "r-cut", "r-cut-to", "--speed", "1x", "--to", str(START_MS + 5000))
    broker.wait_for("r-cut-to", 2)
    slow.send_signal(signal.SIGINT)
    output, _errors = slow.communicate(timeout=60)
    assert slow.returncode == 130
    assert "the same command continues" in output
    stored = len(broker.records("r-cut-to"))
    assert 0 < stored < 5
    told = json.loads(call("replay", "r-cut", "r-cut-to", "--to", START_MS + 5000, "--json"))
    assert told["resumed"]
    assert [each.value for each in broker.records("r-cut-to")] == [b"0", b"1", b"2", b"3", b"4"]


def interrupt_a_replay(broker: flowstone.Broker, source: str, target: str) -> None:
    """Leaves what a killed replay of the whole topic would."""
    told = json.dumps({"asked": {"from": "beginning", "to": "end"}, "start": 0, "end": 2})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"flowstone-replay.{source}.{target}"})
    consumer.commit(offsets=[TopicPartition(source, 0, 1, told)], asynchronous=False)
    consumer.close()


def test_a_replay_of_another_range_than_the_interrupted_one_is_refused(
    refused: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    prepare("r-other", (None, "a", START_MS), (None, "b", START_MS + 1))
    prepare("r-other-to")
    interrupt_a_replay(broker, "r-other", "r-other-to")
    said = refused("replay", "r-other", "r-other-to", "--from", START_MS)
    assert "--from 'beginning' --to 'end' was interrupted" in said


def test_a_restarted_replay_begins_afresh(call: Call, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("r-again", (None, "a", START_MS), (None, "b", START_MS + 1))
    prepare("r-again-to")
    interrupt_a_replay(broker, "r-again", "r-again-to")
    assert json.loads(call("replay", "r-again", "r-again-to", "--restart", "--json"))["stored"] == 2


def recreate(broker: flowstone.Broker, topic: str, *values: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(10)
    broker.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=0, timestamp=START_MS + 1000 * number)
    assert producer.flush(20) == 0


def test_a_source_that_is_created_again_during_a_replay_ends_it(
    prepare: Prepare, spawn: Callable[..., subprocess.Popen[str]], broker: flowstone.Broker
) -> None:
    large = "x" * 600_000  # a response has a few of them
    prepare("r-new", *((None, f"{i}{large}", START_MS + 1000 * i) for i in range(40)))
    prepare("r-new-to")
    slow = spawn("replay", "r-new", "r-new-to", "--speed", "10x")
    broker.wait_for("r-new-to", 1)
    recreate(broker, "r-new", *(f"new{i}" for i in range(40)))
    output, errors = slow.communicate(timeout=60)
    assert slow.returncode == 1
    assert "topic r-new was deleted and created again" in output + errors
    assert [each.value for each in broker.records("r-new-to") if (each.value or b"").startswith(b"new")] == []


def test_a_replay_of_a_source_that_was_created_again_since_begins_afresh(
    call: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    prepare("r-anew", (None, "a", START_MS), (None, "b", START_MS + 1))
    prepare("r-anew-to")
    interrupt_a_replay(broker, "r-anew", "r-anew-to")
    recreate(broker, "r-anew", "1", "2", "3")
    told = json.loads(call("replay", "r-anew", "r-anew-to", "--json"))
    assert (told["stored"], told["resumed"]) == (3, False)


def test_a_replay_to_fewer_partitions_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("r-wide", partitions=3)
    prepare("r-narrow", partitions=2)
    assert "records keep their partitions" in refused("replay", "r-wide", "r-narrow")


def test_a_replay_to_a_topic_that_stamps_its_own_times_is_refused(refused: Call, call: Call, prepare: Prepare) -> None:
    prepare("r-stamped")
    call("topic", "create", "r-stamping", "--config", "message.timestamp.type=LogAppendTime", "--partitions", 1)
    assert "timestamps would be lost" in refused("replay", "r-stamped", "r-stamping")


def test_a_topic_is_not_replayed_to_itself(refused: Call, prepare: Prepare) -> None:
    prepare("r-self")
    assert "not replayed to itself" in refused("replay", "r-self", "r-self")


@pytest.mark.parametrize("speed", ["fast", "0", "-1x", "nan", "inf"])
def test_a_speed_that_is_none_is_refused(refused: Call, speed: str) -> None:
    assert "expected 1x, 10x or 0.5x" in refused("replay", "a", "b", "--speed", speed)
