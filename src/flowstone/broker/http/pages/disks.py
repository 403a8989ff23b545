"""The page `/disks`: the log directories and their free space as JSON; `/disks?topic=NAME` also the topic's disk usage.

For each partition of the topic: directory, size, segments, the time of its oldest record and its growth.
"""

from __future__ import annotations

import math
import posixpath
from typing import TYPE_CHECKING, Any

from flowstone.broker.disks.disk_space import DirectorySpace, DiskSpace
from flowstone.broker.http.page import (
    GET,
    TOPIC_NAME_CHARACTERS_MAX,
    Answer,
    Page,
    PageRequest,
    Text,
)
from flowstone.broker.http.pages.json_documents import encode_json
from flowstone.broker.lag.next_unread import UnreadTimestamps
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices, yield_to_loop
from flowstone.broker.requests.context import Services
from flowstone.broker.requests.permissions import CLUSTER_DESCRIBE
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext


class DiskPage:
    def __init__(self, services: Services, disks: DiskSpace) -> None:
        self._services, self._disks = services, disks
        self._timestamps = UnreadTimestamps(services.workers)

    async def write(self, topic: str | None) -> bytes:
        """Return the encoded page; the cluster's id tells a client whether it has reached the broker it expects."""
        logs = self._services.logs
        document: dict[str, Any] = {
            "cluster_id": logs.identity.cluster_id,
            "directories": [
                *map(_directory_document, self._disks.directories),
                *(_offline_document(path, str(fault)) for path, fault in logs.unusable.items()),
            ],
        }
        document["damaged"] = [
            {"partition": str(each.topic_partition), "path": each.path, "reason": each.reason}
            for each in logs.scrubber.damaged
        ]
        if topic is not None:
            document["topic"] = topic
            document["partitions"] = iter(await self._partitions(topic))
        encoded = await run_in_slices(encode_json(document), TimeSlices(self._services.clock.monotonic))
        return encoded.encode()

    async def _partitions(self, name: str) -> list[dict[str, Any]]:
        """Return the documents of a topic's partitions that are on this broker and online."""
        topic = self._services.metadata.image.topics.get(name)
        documents = []
        for index in range(len(topic.partitions) if topic is not None else 0):
            partition = self._services.partitions.find(TopicPartition(name, index))
            if partition is not None and partition.fault is None:
                documents.append(await self._partition(partition))
            await yield_to_loop()
        return documents

    async def _partition(self, partition: Partition) -> dict[str, Any]:
        log = partition.log
        oldest_ms = None
        if partition.high_watermark.offset > log.log_start_offset:
            oldest_ms = await self._timestamps.of(partition, log.log_start_offset)
        return {
            "partition": partition.topic_partition.partition,
            "directory": posixpath.abspath(posixpath.dirname(log.path)),
            "size_bytes": log.size_bytes,
            "segments": len(log.segments) if log.exists else 0,
            "oldest_timestamp_ms": oldest_ms,
            "growth_bytes_per_second": round(self._disks.growth_bytes_per_s(log), 1),
        }


def _directory_document(space: DirectorySpace) -> dict[str, Any]:
    directory = space.directory
    if directory.fault is not None:
        return _offline_document(directory.path, str(directory.fault))
    left_s = space.seconds_left
    return {
        "path": posixpath.abspath(directory.path),
        "state": "online",
        "partitions": len(directory),
        "usable_bytes": space.usable_bytes,
        "total_bytes": space.total_bytes,
        "floor_bytes": space.floor_bytes,
        "refuses_records": space.is_refusing,
        "is_low": space.is_low,
        # The basis of the forecast: the growth of this directory's logs, without other programs' files.
        "filling_bytes_per_second": round(space.growth.bytes_per_s, 1),
        "seconds_left": round(left_s) if math.isfinite(left_s) else None,
        "history_seconds": round(space.growth.history_s),
        "has_enough_history": space.growth.is_known,
        "grown_bytes": space.growth.grown_bytes,
        "others_bytes": space.growth.others_bytes,
    }


def _offline_document(path: str, reason: str) -> dict[str, Any]:
    return {"path": posixpath.abspath(path), "state": "offline", "reason": reason}


async def _disks(context: PageContext, request: PageRequest) -> Answer:
    return Answer(await context.disk_page.write(request.text("topic")))


DISKS = Page(
    GET,
    "/disks",
    summary=(
        "the data directories, their free space and their damage; with a topic also the space that it uses: "
        "see [disks](disks.md)"
    ),
    permissions=(CLUSTER_DESCRIBE,),
    handler=_disks,
    parameters=(Text("topic", TOPIC_NAME_CHARACTERS_MAX),),
)
