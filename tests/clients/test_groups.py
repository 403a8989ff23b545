"""Consumer groups as the libraries' users have them: sharing, leaving, dying, coming back where one left off."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from tests.clients.confluent_driver import ConfluentDriver
from tests.clients.driver import IS_CLUSTER, Refused, Sent
from tests.clients.group_members import (
    LIBRARIES,
    POLL_MS,
    POLL_S,
    WAIT_S,
    ConfluentMember,
    KafkaPythonMember,
    Member,
)

PARTITIONS = 4
RECORDS_PER_PARTITION = 25
EVERYTHING = {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS_PER_PARTITION)}
ROOT = Path(__file__).parents[2]

Join = Callable[..., Member]
Java = Callable[..., str]


@pytest.fixture
def full_topic(group_broker: Broker, topic_name: str) -> str:
    driver = ConfluentDriver(group_broker.bootstrap)
    driver.create_topic(topic_name, PARTITIONS)
    fill(group_broker.bootstrap, topic_name)
    return topic_name


@pytest.fixture
def join(group_broker: Broker, full_topic: str) -> Iterator[Join]:
    """Makes a member of the test's own group, which leaves with the test at the latest."""
    members: list[Member] = []

    def make(library: str, **settings: object) -> Member:
        member = LIBRARIES[library](group_broker.bootstrap, f"group-of-{full_topic}", full_topic, **settings)
        members.append(member)
        return member

    yield make
    for member in members:
        member.leave()


@pytest.fixture(params=list(LIBRARIES))
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fill(bootstrap: str, topic: str) -> None:
    records = [Sent(b"v", partition=partition) for partition, _offset in sorted(EVERYTHING)]
    ConfluentDriver(bootstrap).produce(topic, records)


def wait_shared(*members: Member) -> None:
    """Until every partition has one owner and no member has two more than another, all at the same time.

    On a busy machine a group may rebalance once more, and each member in turn has no partitions then: what is asked of
    one member after the other need never hold of all.
    """

    def is_shared(_: Member) -> bool:
        shares = [each.assignment for each in members]
        sizes = [len(share) for share in shares]
        owned = sorted(partition for share in shares for partition in share)
        return owned == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    members[0].wait_until(is_shared)


def test_a_member_alone_reads_every_partition(join: Join, library: str) -> None:
    member = join(library)
    member.wait_until(lambda member: set(member.read) == EVERYTHING)
    member.wait_until(lambda member: member.assignment == set(range(PARTITIONS)))


@pytest.mark.skipif(IS_CLUSTER, reason="answers of one broker are delayed")
def test_a_member_of_kafka_python_joins_although_it_is_often_late(group_broker: Broker, full_topic: str) -> None:
    """A join that takes longer than a short poll and ends between two polls; see `kafka_python_poll_ms`."""

    class LateMember(KafkaPythonMember):
        def _note(self, assignment: Iterable[int], read: Iterable[tuple[int, int]]) -> None:
            super()._note(assignment, read)
            self._ending.wait(4 * POLL_S)

    with group_broker.fault("JoinGroup", delay_ms=2 * POLL_MS):
        member = LateMember(group_broker.bootstrap, f"group-of-{full_topic}", full_topic)
        try:
            member.wait_assigned(PARTITIONS)
        finally:
            member.leave()


def test_the_next_member_goes_on_where_the_last_one_committed(
    join: Join, library: str, group_broker: Broker, full_topic: str
) -> None:
    first = join(library)
    first.wait_until(lambda member: len(member.read) == len(EVERYTHING))
    first.leave(commit=True)
    fill(group_broker.bootstrap, full_topic)

    second = join(library)
    second.wait_until(lambda member: len(member.read) == len(EVERYTHING))
    assert min(offset for _partition, offset in second.read) == RECORDS_PER_PARTITION


def test_what_was_not_committed_is_read_again(join: Join, library: str) -> None:
    first = join(library)
    first.wait_until(lambda member: set(member.read) == EVERYTHING)
    first.leave()

    join(library).wait_until(lambda member: set(member.read) == EVERYTHING)


def test_members_share_the_partitions_and_the_last_one_gets_them_all(join: Join, library: str) -> None:
    first = join(library)
    first.wait_assigned(PARTITIONS)
    second = join(library)
    wait_shared(first, second)

    second.leave()
    first.wait_assigned(PARTITIONS)


def test_three_libraries_share_one_group(join: Join) -> None:
    members = [join(library) for library in LIBRARIES]
    wait_shared(*members)


def test_a_killed_members_partitions_go_to_the_others_when_its_session_ends(
    join: Join, library: str, group_broker: Broker, full_topic: str
) -> None:
    command = (sys.executable, "-m", "tests.clients.group_members")
    where = (library, group_broker.bootstrap, f"group-of-{full_topic}", full_topic)
    with subprocess.Popen([*command, *where], cwd=ROOT, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        try:
            assert doomed.stdout.readline() == "assigned\n"
            survivor = join(library)
            survivor.wait_assigned(PARTITIONS // 2)
        finally:
            doomed.kill()
    survivor.wait_until(lambda member: member.assignment == set(range(PARTITIONS)))
    survivor.wait_until(lambda member: set(member.read) == EVERYTHING)


def test_a_cooperative_group_takes_from_a_member_only_what_it_gives_away(join: Join) -> None:
    first = join("confluent-kafka", assignor="cooperative-sticky")
    first.wait_assigned(PARTITIONS)
    second = join("confluent-kafka", assignor="cooperative-sticky")
    wait_shared(first, second)
    assert min(map(len, first.assignments)) == PARTITIONS // 2, "it never had to let go of everything"


def test_a_static_member_that_comes_back_in_time_disturbs_nobody(
    join: Join, library: str, group_broker: Broker, full_topic: str
) -> None:
    first = join(library, instance_id="one", session_ms=30_000)
    first.wait_assigned(PARTITIONS)
    second = join(library, instance_id="two", session_ms=30_000)
    wait_shared(first, second)
    seen = len(first.assignments)
    second.leave()

    third = join(library, instance_id="two", session_ms=30_000)
    third.wait_assigned(PARTITIONS // 2)
    assert third.assignment == second.assignment
    assert len(first.assignments) == seen


@pytest.mark.skipif(IS_CLUSTER, reason="kills a broker of its own")
def test_commits_and_groups_outlive_the_broker(tmp_path: Path) -> None:
    settings = {"group.min.session.timeout.ms": "500"}
    with Broker(data=str(tmp_path), settings=settings) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        ConfluentDriver(broker.bootstrap).create_topic("t", PARTITIONS)
        fill(broker.bootstrap, "t")
        first = ConfluentMember(broker.bootstrap, "g", "t")
        first.wait_until(lambda member: len(member.read) == len(EVERYTHING))
        first.leave(commit=True)
        staying = ConfluentMember(broker.bootstrap, "g", "t")
        staying.wait_assigned(PARTITIONS)
        broker.kill()
    with Broker(data=str(tmp_path), port=port, settings=settings) as broker:
        fill(broker.bootstrap, "t")
        staying.wait_until(lambda member: len(member.read) == len(EVERYTHING))
        assert min(offset for _partition, offset in staying.read) == RECORDS_PER_PARTITION
        staying.leave()


def test_an_operator_sees_groups_moves_offsets_and_deletes_a_group(
    join: Join, group_broker: Broker, full_topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": group_broker.bootstrap})
    group_id = f"group-of-{full_topic}"
    member = join("confluent-kafka")
    member.wait_until(lambda member: len(member.read) == len(EVERYTHING))

    described = admin.describe_consumer_groups([group_id])[group_id].result(WAIT_S)
    assert described.state == ck.ConsumerGroupState.STABLE
    assert [len(each.assignment.topic_partitions) for each in described.members] == [PARTITIONS]
    member.leave(commit=True)

    listed = admin.list_consumer_groups(states={ck.ConsumerGroupState.EMPTY}).result()
    assert group_id in [group.group_id for group in listed.valid]
    moved = [ck.TopicPartition(full_topic, 1, 7)]
    admin.alter_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group_id, moved)])[group_id].result(WAIT_S)
    offsets = admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group_id)])[group_id].result(WAIT_S)
    assert {each.partition: each.offset for each in offsets.topic_partitions} == {0: 25, 1: 7, 2: 25, 3: 25}

    admin.delete_consumer_groups([group_id])[group_id].result(WAIT_S)
    listed = admin.list_consumer_groups().result()
    assert group_id not in [group.group_id for group in listed.valid]


def test_nobody_but_the_coordinator_writes_to_the_offsets_topic(join: Join, group_broker: Broker) -> None:
    join("confluent-kafka").wait_assigned(PARTITIONS)
    with pytest.raises(Refused) as refused:
        ConfluentDriver(group_broker.bootstrap).produce("__consumer_offsets", [Sent(b"v", b"k", partition=0)])
    assert refused.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_kafkas_own_tools_read_our_groups_and_their_records(
    java: Java, join: Join, group_broker: Broker, full_topic: str
) -> None:
    member = join("confluent-kafka")
    member.wait_until(lambda member: len(member.read) == len(EVERYTHING))
    group_id = f"group-of-{full_topic}"
    described = java(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", group_broker.bootstrap, "--describe", "--state", "--group", group_id),
    )
    assert re.search(rf"{group_id} .* range +Stable +1", described)
    member.leave(commit=True)

    segment = f"{group_broker.data_directory}/__consumer_offsets-0/{0:020}.log"
    dumped = java("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", segment)
    records = [line for line in dumped.splitlines() if f'"group":"{group_id}"' in line]
    group, *offsets, empty_group = records
    assert '"protocolType":"consumer","generation":1,"protocol":"range"' in group
    assert f'"topics":["{full_topic}"]' in group
    assert sorted(re.findall(r'"partition":(\d+)', " ".join(offsets))) == [str(each) for each in range(PARTITIONS)]
    assert all(f'"offset":{RECORDS_PER_PARTITION},"leaderEpoch":0,"metadata":""' in line for line in offsets)
    assert '"members":[]' in empty_group
