"""Where a branch left its source: the file `branch-point` in its partitions' directories, and what follows from it.

The batches below that offset were written to another topic. Their producers' sequence numbers say nothing about this
one: clients count per topic and partition, and begin a new topic at sequence 0 with the producer id they have. If a
branch took over its source's producer states, a live producer's first batch would be out of order here, or, worse,
pass for one of the remembered ones and be lost. So a branch knows no producer at first, as any new topic, and what is
derived from its headers is derived from this offset on. Unlike snapshots and indexes the file does not follow from the
log: it is durable before the branch can be seen.
"""

from __future__ import annotations

from typing import NamedTuple

from flowstone.log.checkpoints import format_uuid, parse_uuid
from flowstone.ports.files import Files

BRANCH_POINT = "branch-point"
_VERSION = "0"


class BranchPoint(NamedTuple):
    source_topic: str
    source_topic_id: bytes
    offset: int  # the first one that is not the source's


def encode_branch_point(point: BranchPoint) -> bytes:
    return (
        f"version: {_VERSION}\nsource_topic: {point.source_topic}\n"
        f"source_topic_id: {format_uuid(point.source_topic_id)}\noffset: {point.offset}\n"
    ).encode()


def decode_branch_point(data: bytes) -> BranchPoint | None:
    """None if the text is not a whole file."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
        topic_id, offset = parse_uuid(fields["source_topic_id"]), int(fields["offset"])
        if fields["version"] != _VERSION or topic_id is None or offset < 0:
            return None
        return BranchPoint(fields["source_topic"], topic_id, offset)
    except (ValueError, KeyError):
        return None


def read_branch_point(files: Files, directory: str) -> BranchPoint | None:
    """None if the partition is no branch's."""
    path = f"{directory}/{BRANCH_POINT}"
    return decode_branch_point(files.read(path)) if files.exists(path) else None
