"""Hundreds of thousands of short-lived topics, groups, members, sessions and connections: the memory levels off.

    python -m tests.hostile.churn --operations 500000

Every operation creates something and gives it up again. The broker is a process of its own; its resident memory is
printed in steps. The run fails if the memory at the end exceeds the memory after the first part (`--settle`, by default
a quarter of all operations) by more than `--growth-mib`. `--kinds` selects the kinds of operations, `--data` the
directory for the broker's data (a memory file system makes the run several times faster).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_decoder
from flowstone.wire.frames import parse_response_header
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import Client, api_key, batch_of, frame, produce_request

MIB = 1 << 20
TOGETHER = 20  # operations of one kind that are under way at once
STEPS = 40
SESSION_MS = 30_000
TIMEOUT_MS = 30_000

_numbers = itertools.count()


def ask_all(client: Client, version: int, requests: Sequence[Any]) -> list[Any]:
    """Send all requests at once and return their answers in order."""
    key = api_key(requests[0])
    client.send(b"".join(frame(version, request) for request in requests))
    answers = []
    for _ in requests:
        response = memoryview(client.receive())
        _, at = parse_response_header(response, 0, APIS[key].has_flexible_response_header(version))
        answers.append(response_decoder(key, version)(response, at))
    return answers


def _check(codes: Iterator[int] | Sequence[int]) -> None:
    refused = [ErrorCode(code).name for code in codes if code]
    if refused:
        raise AssertionError(f"{len(refused)} operations were refused, the first with {refused[0]}")


def _names(kind: str) -> list[str]:
    return [f"{kind}-{next(_numbers)}" for _ in range(TOGETHER)]


def _create(client: Client, names: Sequence[str]) -> None:
    topics = [m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = client.ask(5, m.CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS))
    _check([topic.error_code for topic in answer.topics])


def _delete(client: Client, names: Sequence[str]) -> None:
    answer = client.ask(5, m.DeleteTopicsRequest(topic_names=list(names), timeout_ms=TIMEOUT_MS))
    _check([topic.error_code for topic in answer.responses])


def empty_topics(client: Client) -> None:
    """Create topics and delete them."""
    names = _names("empty")
    _create(client, names)
    _delete(client, names)


def written_topics(client: Client) -> None:
    """Create topics, produce to each, read it, and delete them."""
    names = _names("written")
    _create(client, names)
    batch = batch_of(b"x" * 100)
    answers = ask_all(client, 9, [produce_request(name, batch) for name in names])
    _check([answer.responses[0].partition_responses[0].error_code for answer in answers])
    _delete(client, names)


def _join(client: Client, group_ids: Sequence[str], client_version: int = 3) -> list[Any]:
    protocol = m.JoinGroupRequestProtocol(name="range", metadata=b"x" * 100)
    joins = [
        m.JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )
        for group_id in group_ids
    ]
    return ask_all(client, client_version, joins)


def _join_and_leave(client: Client, group_ids: Sequence[str]) -> None:
    joined = _join(client, group_ids)
    _check([answer.error_code for answer in joined])
    syncs = [
        m.SyncGroupRequest(
            group_id=group_id,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            assignments=[m.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"y" * 50)],
        )
        for group_id, answer in zip(group_ids, joined, strict=True)
    ]
    _check([answer.error_code for answer in ask_all(client, 3, syncs)])
    leaves = [
        m.LeaveGroupRequest(group_id=group_id, member_id=answer.member_id)
        for group_id, answer in zip(group_ids, joined, strict=True)
    ]
    _check([answer.error_code for answer in ask_all(client, 2, leaves)])


def new_groups(client: Client) -> None:
    """Join groups that nobody knew, take an assignment, and leave."""
    _join_and_leave(client, _names("group"))


def new_members(client: Client) -> None:
    """Join the same groups again and again, each time as a new member, and leave."""
    _join_and_leave(client, [f"again-{number}" for number in range(TOGETHER)])


def unused_member_ids(client: Client) -> None:
    """Ask for member ids and give them back without joining."""
    group_ids = _names("pending")
    answers = _join(client, group_ids, client_version=5)
    assert {answer.error_code for answer in answers} == {ErrorCode.MEMBER_ID_REQUIRED}
    leaves = [
        m.LeaveGroupRequest(group_id=group_id, member_id=answer.member_id)
        for group_id, answer in zip(group_ids, answers, strict=True)
    ]
    _check([answer.error_code for answer in ask_all(client, 2, leaves)])


def committed_groups(client: Client) -> None:
    """Commit an offset in groups without members, and delete the groups."""
    group_ids = _names("committed")
    offset = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="note")
    topic = m.OffsetCommitRequestTopic(name=LASTING_TOPIC, partitions=[offset])
    answers = ask_all(client, 8, [m.OffsetCommitRequest(group_id=group_id, topics=[topic]) for group_id in group_ids])
    _check([answer.topics[0].partitions[0].error_code for answer in answers])
    for group_id in group_ids:
        (result,) = client.ask(1, m.DeleteGroupsRequest(groups_names=[group_id])).results
        _check([result.error_code])


def fetch_sessions(client: Client) -> None:
    """Open fetch sessions and close them."""
    partition = m.FetchRequestPartition(partition=0, partition_max_bytes=1)
    topics = [m.FetchRequestTopic(topic=LASTING_TOPIC, partitions=[partition])]
    answers = ask_all(client, 11, [m.FetchRequest(session_id=0, session_epoch=0, topics=topics)] * TOGETHER)
    _check([answer.error_code for answer in answers])
    closing = [m.FetchRequest(session_id=answer.session_id, session_epoch=-1) for answer in answers]
    _check([answer.error_code for answer in ask_all(client, 11, closing)])


def connections(client: Client) -> None:
    """Connect, say a name that nobody said before, and disconnect."""
    for _ in range(TOGETHER):
        with Client(client.socket.getpeername()[:2]) as other:
            name = f"software-{next(_numbers)}"
            other.ask(3, m.ApiVersionsRequest(client_software_name=name, client_software_version="1"))


LASTING_TOPIC = "lasting"
KINDS: dict[str, Callable[[Client], None]] = {
    function.__name__: function
    for function in (
        empty_topics,
        written_topics,
        new_groups,
        new_members,
        unused_member_ids,
        committed_groups,
        fetch_sessions,
        connections,
    )
}


def begin(client: Client) -> None:
    """Create the topic that stays, and have the coordinator loaded."""
    assert client.create_topic(LASTING_TOPIC) == 0
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while client.ask(0, m.FindCoordinatorRequest(key="g")).error_code or _join(client, ["g"], 5)[0].error_code not in (
        ErrorCode.NONE,
        ErrorCode.MEMBER_ID_REQUIRED,
    ):
        assert time.monotonic() < deadline, "no coordinator"
        time.sleep(0.05)


def run(broker: BrokerProcess, operations: int, kinds: Sequence[str]) -> list[tuple[int, int]]:
    """Return the broker's resident memory in bytes after each step, with the number of operations done by then."""
    curve = []
    done = 0
    started = time.monotonic()
    with broker.connect(timeout_s=TIMEOUT_MS / 1000) as client:
        begin(client)
        for kind in itertools.cycle(kinds):
            if len(curve) <= done * STEPS // operations:
                curve.append((done, broker.rss_bytes()))
                print(
                    f"{done:>8} operations, {time.monotonic() - started:>6.0f} s: {curve[-1][1] / MIB:.1f} MiB",
                    flush=True,
                )
            if done >= operations:
                return curve
            KINDS[kind](client)
            done += TOGETHER
    raise AssertionError("no kinds of operations")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=500_000)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument(
        "--settle", type=int, default=0, help="operations after which the memory must have levelled off"
    )
    parser.add_argument("--growth-mib", type=float, default=16.0)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    asked = parser.parse_args()
    settings = {"group.initial.rebalance.delay.ms": "0", **dict(each.split("=", 1) for each in asked.set)}
    settle = asked.settle or asked.operations // 4
    with (
        tempfile.TemporaryDirectory(dir=asked.data) as directory,
        BrokerProcess(Path(directory, "data"), settings=settings) as broker,
    ):
        curve = run(broker, asked.operations, asked.kinds.split(","))
        faults = broker.faults()
    settled = next(size for done, size in curve if done >= settle)
    growth = (curve[-1][1] - settled) / MIB
    print(
        f"from {settle} operations on: {growth:+.1f} MiB, {growth * MIB / (asked.operations - settle):.0f} bytes each"
    )
    for fault in faults[:5]:
        print(fault, end="")
    return 1 if faults or growth > asked.growth_mib else 0


if __name__ == "__main__":
    sys.exit(main())
