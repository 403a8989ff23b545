"""`flowstone group`, as an operator meets it: groups of real clients, and what is printed about them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.broker.lag.group_status import GroupStatus, PartitionLag
from flowstone.cli.common.broker_pages import Address
from flowstone.cli.common.clients import connect, split_address
from flowstone.cli.group.reading import GroupReader
from flowstone.cli.group.tables import description
from tests.support.polling_member import PollingMember
from tests.unit.cli.terminal import Terminal

Call = Callable[..., str]
Run = Callable[..., subprocess.CompletedProcess[str]]
Prepare = Callable[..., None]
OpenTerminal = Callable[..., Terminal]

# Records of each partition of a test's topic are a second apart, the first of them at this time.
BEGIN_MS = 1_000_000_000_000
RECORDS = 5
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(http=True) as broker:
        yield broker


@pytest.fixture
def topic(broker: flowstone.Broker) -> str:
    """Two partitions, the first with five records."""
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(name, str(number), partition=0, timestamp=BEGIN_MS + number * 1000)
    assert producer.flush(10) == 0
    return name


@pytest.fixture
def commit(broker: flowstone.Broker) -> Callable[..., None]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

    def commit(group: str, topic: str, *offsets: int) -> None:
        """An offset for each partition, from 0 on."""
        partitions = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        request = ConsumerGroupTopicPartitions(group, partitions)
        admin.alter_consumer_group_offsets([request])[group].result()

    return commit


@pytest.fixture
def join(broker: flowstone.Broker) -> Iterator[Callable[..., None]]:
    """Members of a group, which has them all when this returns; they commit nothing."""
    members: list[PollingMember] = []

    def join(group: str, topic: str, *client_ids: str) -> None:
        settings = ({"client_id": client_id, "enable_auto_commit": False} for client_id in client_ids)
        members.extend(PollingMember(broker, group, topic, **each) for each in settings)
        broker.wait_for_group(group, members=len(client_ids))

    yield join
    for member in members:
        member.leave()


def offsets(broker: flowstone.Broker, group: str) -> list[int | None]:
    return [each.committed_offset for each in broker.groups()[group].partitions]


def documents(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


# list and describe


def test_groups_are_listed_with_what_they_are_behind(call: Call, topic: str, commit: Callable[..., None]) -> None:
    commit("listed", topic, 2, 0)
    lines = call("group", "list").splitlines()
    assert lines[0].split() == ["group", "type", "state", "members", "lag", "behind", "headroom"]
    (row,) = [line.split() for line in lines if line.startswith("listed ")]
    assert row[:5] == ["listed", "classic", "Empty", "0", "3"]
    (document,) = [each for each in documents(call("group", "list", "--json")) if each["group"] == "listed"]
    assert (document["members"], document["lag"], document["headroom_seconds"]) == (0, 3, None)
    assert document["lag_seconds"] > 0


def test_a_group_is_described_with_members_partitions_and_lag(
    call: Call, topic: str, join: Callable[..., None], commit: Callable[..., None]
) -> None:
    commit("described", topic, 2, 0)
    join("described", topic, "ada", "bob")
    printed = call("group", "describe", "described")
    assert printed.startswith("group described: Stable, 2 members, range\n")
    rows = [line.split() for line in printed.splitlines()]
    assert ["ada", "127.0.0.1", f"{topic}:0"] in [row[1:] for row in rows if len(row) == 4]
    (partition,) = [row for row in rows if row[:2] == [topic, "0"]]
    assert partition[2:5] == ["2", "5", "3"]
    assert partition[-1].startswith("ada-")


def test_an_idle_member_is_told_of_with_the_reason(call: Call, topic: str, join: Callable[..., None]) -> None:
    join("crowded", topic, "ada", "bob", "cid")
    assert "none: 3 members share 2 partitions; add partitions, or stop a member" in call(
        "group", "describe", "crowded"
    )
    (document,) = documents(call("group", "describe", "crowded", "--json"))
    assert sorted(member["idle_reason"] is None for member in document["members"]) == [False, True, True]
    assert document["rebalances"]["count"] >= 1
    assert "joined" in document["rebalances"]["last_reason"]


def test_a_group_that_is_not_there_is_said_to_be_missing(
    refused: Call, commit: Callable[..., None], topic: str
) -> None:
    commit("present", topic, 0)
    assert refused("group", "describe", "presentt").endswith("did you mean present?\n")


def test_without_the_broker_s_page_there_are_records_only_and_the_reason(run: Run) -> None:
    with flowstone.Broker() as plain:
        plain.create_topic("t")
        at = ("--bootstrap", plain.bootstrap)
        assert run("group", "reset", "g", "--to-latest", "--topic", "t", "--yes", *at).returncode == 0
        printed = run("group", "describe", "g", *at).stdout
    assert "topic  partition  committed  end  lag  member\nt      0          0          0    0    -\n" in printed
    assert "not known: the broker serves no HTTP pages (http.listener is off)\n" in printed


@pytest.mark.parametrize(("is_served", "reason"), [(False, "Connection refused"), (True, "it is another cluster's")])
def test_a_page_that_cannot_be_had_or_is_somebody_else_s_is_not_used(
    broker: flowstone.Broker, topic: str, commit: Callable[..., None], is_served: bool, reason: str
) -> None:
    commit(topic, topic, 2, 0)
    reader = GroupReader(connect(broker.bootstrap), broker.bootstrap)
    with flowstone.Broker(http=True) as other:
        address = str(other.http).removeprefix("http://")
        if not is_served:
            other.stop()
        reader._pages._addresses = [Address(*split_address(address), is_encrypted=False)]
        group = reader.read(topic)
    assert (group.lag, group.lag_seconds) == (3, None)
    assert reader.problem is not None
    assert reason in reader.problem


# delete


def test_a_group_is_deleted_with_its_offsets(
    call: Call, broker: flowstone.Broker, topic: str, commit: Callable[..., None]
) -> None:
    commit("gone", topic, 1)
    assert call("group", "delete", "gone") == "deleted group gone\n"
    assert "gone" not in broker.groups()


def test_a_group_with_members_is_not_deleted(refused: Call, topic: str, join: Callable[..., None]) -> None:
    join("busy", topic, "ada")
    assert refused("group", "delete", "busy") == "flowstone: group busy has 1 member: stop them first\n"


# reset


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [5, 0]),
        (["--to-offset", "4"], [4, 0]),
        (["--to-offset", "99"], [5, 0]),
        (["--shift-by", "-2"], [1, 0]),
        (["--shift-by", "100"], [5, 0]),
        (["--to-timestamp", str(BEGIN_MS + 1500)], [2, 0]),
        (["--to-timestamp", "2001-09-09T01:46:44+00:00"], [4, 0]),
        (["--to-timestamp", "2099-01-01T00:00:00+00:00"], [5, 0]),
    ],
)
def test_offsets_are_reset_to_what_is_asked_for_within_what_is_there(
    call: Call,
    broker: flowstone.Broker,
    topic: str,
    commit: Callable[..., None],
    options: list[str],
    expected: list[int],
) -> None:
    commit(topic, topic, 3, 0)
    call("group", "reset", topic, *options, "--all-topics", "--yes")
    assert offsets(broker, topic) == expected


def test_a_reset_shows_its_plan_and_a_dry_run_does_nothing_else(
    call: Call, broker: flowstone.Broker, topic: str, commit: Callable[..., None]
) -> None:
    commit("dry", topic, 3, 0)
    printed = call("group", "reset", "dry", "--to-earliest", "--all-topics", "--dry-run")
    assert [line.split()[1:] for line in printed.splitlines()] == [
        ["partition", "committed", "new", "offset"],
        ["0", "3", "0"],
        ["1", "0", "0"],
    ]
    assert offsets(broker, "dry") == [3, 0]
    (document,) = documents(
        call("group", "reset", "dry", "--to-latest", "--topic", f"{topic}:0", "--dry-run", "--json")
    )
    moved = {"topic": topic, "partition": 0, "committed_offset": 3, "new_offset": 5}
    assert document == {"group": "dry", "dry_run": True, "partitions": [moved]}


def test_a_reset_without_leave_changes_nothing(
    run: Run, broker: flowstone.Broker, topic: str, commit: Callable[..., None]
) -> None:
    commit("unasked", topic, 3, 0)
    result = run("group", "reset", "unasked", "--to-earliest", "--all-topics", "--bootstrap", broker.bootstrap)
    assert (result.returncode, result.stderr) == (
        1,
        "flowstone: group unasked will continue from the new offsets; use --yes to confirm\n",
    )
    assert offsets(broker, "unasked") == [3, 0]


def test_offsets_come_from_a_file_as_kafka_s_tool_writes_it(
    call: Call, broker: flowstone.Broker, topic: str, commit: Callable[..., None], tmp_path: Path
) -> None:
    commit("filed", topic, 0, 0)
    file = tmp_path / "offsets.csv"
    file.write_text(f'"{topic}",0,4\n{topic},1,0\n')
    call("group", "reset", "filed", "--from-file", file, "--yes")
    assert offsets(broker, "filed") == [4, 0]
    file.write_text(f'"filed","{topic}",0,2\n"another","{topic}",0,3\n')
    call("group", "reset", "filed", "--from-file", file, "--yes")
    assert offsets(broker, "filed") == [2, 0]


def test_a_group_that_is_new_can_be_given_a_beginning(call: Call, broker: flowstone.Broker, topic: str) -> None:
    printed = call("group", "reset", "newborn", "--to-offset", "2", "--topic", f"{topic}:0", "--yes")
    assert printed.endswith("reset 1 partition of group newborn\n")
    assert offsets(broker, "newborn") == [2]


def test_a_group_with_members_is_not_reset(refused: Call, topic: str, join: Callable[..., None]) -> None:
    join("reading", topic, "ada")
    assert "has 1 member: stop them first" in refused("group", "reset", "reading", "--to-latest", "--topic", topic)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--all-topics", "give one of --to-earliest"),
        ("--to-earliest --to-latest --all-topics", "give one of --to-earliest"),
        ("--to-earliest", "say what to reset"),
        ("--to-earliest --topic nowhere", "there is no topic nowhere"),
        ("--to-earliest --topic {topic}:7", "has 2 partitions, and no partition 7"),
        ("--to-earliest --topic {topic}:x", "expected --topic T:0,1"),
        ("--to-timestamp noon --topic {topic}", "--to-timestamp noon: expected"),
        ("--shift-by 1 --topic {topic}", "there is nothing to shift"),
        ("--to-earliest --all-topics", "has committed nothing yet"),
        ("--from-file missing.csv", "cannot read missing.csv"),
    ],
)
def test_what_a_reset_cannot_do_it_says(refused: Call, topic: str, arguments: str, complaint: str) -> None:
    assert complaint in refused("group", "reset", "nobody", *arguments.format(topic=topic).split(), "--yes")


def test_a_file_that_is_no_list_of_offsets_is_refused_with_the_line(refused: Call, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text(f"{topic},0,4\n{topic},zero,4\n")
    assert "line 2: expected topic,partition,offset" in refused("group", "reset", "g", "--from-file", file)


# watch


def test_a_watch_without_a_terminal_prints_look_after_look(
    spawn: Callable[..., subprocess.Popen[str]], topic: str, commit: Callable[..., None]
) -> None:
    commit("watched", topic, 2, 0)
    watching = spawn("group", "watch", "watched", "--interval", "0.1", "--json")
    assert watching.stdout is not None
    first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
    assert first["partitions"][0]["appended_per_second"] is None
    assert (second["lag"], second["partitions"][0]["read_per_second"]) == (3, 0)
    watching.send_signal(signal.SIGINT)
    _output, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, "")


def test_a_watch_on_a_terminal_follows_the_group_until_ctrl_c(
    terminal: OpenTerminal, topic: str, commit: Callable[..., None], join: Callable[..., None]
) -> None:
    commit("live", topic, 2, 0)
    screen = terminal("group", "watch", "live", "--interval", "0.1", columns=140)
    screen.wait_for("live: Empty, 0 members")
    join("live", topic, "ada")
    screen.wait_for("live: Stable, 1 member")
    screen.wait_for("rebalance: Member ada-")
    screen.type("\x03")
    assert screen.end() == 0
    assert "Traceback" not in screen.text
    assert "in/s" in screen.text


def test_a_headroom_beyond_retention_is_explained_below_the_table() -> None:
    week_s = 7 * 86400.0
    lagging = PartitionLag("orders", 0, 1, 0, 9, 8, 0, 60.0, 2 * week_s - 86400)
    group = GroupStatus(
        "g", "Empty", "consumer", "", 1, (), (), (lagging._replace(growing_seconds=week_s - 86400),), 0, "", 0
    )
    told = description(group, with_times=True).splitlines()[-1]
    assert told.startswith("headroom includes up to 6.0 d until active segments are sealed (segment.bytes, segment.ms)")
    plain = group._replace(partitions=(lagging,))
    assert "headroom includes" not in description(plain, with_times=True)
