"""Offsets committed on the wire for a group that has no members."""

from __future__ import annotations

import time

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.wire_client import Client

ATTEMPTS_MAX = 1000
ATTEMPT_WAIT_S = 0.01


def commit(client: Client, group_id: str, topic: str, *offsets: int) -> None:
    """One offset for each partition, from 0 on."""
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in enumerate(offsets)
    ]
    request = m.OffsetCommitRequest(
        group_id=group_id, topics=[m.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    )
    found = client.ask(0, m.FindCoordinatorRequest(key=group_id))  # makes the offsets topic
    assert found.error_code == ErrorCode.NONE
    for _ in range(ATTEMPTS_MAX):  # until it is loaded, which takes the disk's time
        time.sleep(ATTEMPT_WAIT_S)
        (answer,) = client.ask(8, request).topics
        codes = {each.error_code for each in answer.partitions}
        if codes != {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
            break
    assert codes == {ErrorCode.NONE}, codes
