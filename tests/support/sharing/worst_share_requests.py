"""The most expensive requests of the APIs of share groups' data, for `worst_requests`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flowstone.wire import messages as m
from tests.hostile.worst_case import Case


def sharing_cases() -> Iterator[Case]:
    """Of share partitions that have no state yet, one after the other."""
    topic_id, group = bytes(16), {"group_id": "group"}

    def topics(topic: Any, partition: Any, **fields: Any) -> Callable[[int], dict[str, Any]]:
        return lambda n: (
            group
            | {
                "topics": [
                    topic(topic_id=topic_id, partitions=[partition(partition=each, **fields) for each in range(n)])
                ]
            }
        )

    begins = topics(
        *(m.InitializeShareGroupStateRequestTopic, m.InitializeShareGroupStateRequestPartition),
        state_epoch=0,
        start_offset=0,
    )
    reads = topics(m.ReadShareGroupStateRequestTopic, m.ReadShareGroupStateRequestPartition, leader_epoch=0)
    writes = topics(
        *(m.WriteShareGroupStateRequestTopic, m.WriteShareGroupStateRequestPartition),
        state_epoch=0,
        leader_epoch=0,
        start_offset=0,
        state_batches=[],
    )
    ends = topics(m.DeleteShareGroupStateRequestTopic, m.DeleteShareGroupStateRequestPartition)
    sums = topics(
        *(m.ReadShareGroupStateSummaryRequestTopic, m.ReadShareGroupStateSummaryRequestPartition), leader_epoch=0
    )
    yield Case("InitializeShareGroupState", 0, lambda n: m.InitializeShareGroupStateRequest(**begins(n)))
    yield Case("ReadShareGroupState", 0, lambda n: m.ReadShareGroupStateRequest(**reads(n)))
    yield Case("WriteShareGroupState", 1, lambda n: m.WriteShareGroupStateRequest(**writes(n)))
    yield Case("ReadShareGroupStateSummary", 1, lambda n: m.ReadShareGroupStateSummaryRequest(**sums(n)))
    yield Case("DeleteShareGroupState", 0, lambda n: m.DeleteShareGroupStateRequest(**ends(n)))
    yield from _fetching()


def _fetching() -> Iterator[Case]:
    topic_id, group = bytes(16), {"group_id": "group"}
    member = {"member_id": "m", "share_session_epoch": 0}
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_records": 500, "batch_size": 500, "forgotten_topics_data": []}
    fetched, acked = m.ShareFetchRequestPartition, m.ShareAcknowledgeRequestPartition
    yield Case(
        "ShareFetch of many partitions",
        2,
        lambda n: m.ShareFetchRequest(
            **(group | member | limits),
            topics=[
                m.ShareFetchRequestTopic(
                    topic_id=topic_id,
                    partitions=[fetched(partition_index=each, acknowledgement_batches=[]) for each in range(n)],
                )
            ],
        ),
    )
    yield Case(
        "ShareAcknowledge of many partitions",
        2,
        lambda n: m.ShareAcknowledgeRequest(
            **(group | member),
            topics=[
                m.ShareAcknowledgeRequestTopic(
                    topic_id=topic_id,
                    partitions=[acked(partition_index=each, acknowledgement_batches=[]) for each in range(n)],
                )
            ],
        ),
    )
