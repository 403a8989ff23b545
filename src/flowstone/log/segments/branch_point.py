"""The offset at which a branch left its source: the file `<offset>.branch-point` in the directories of its partitions.

The batches below that offset were written to another topic. Their producers' sequence numbers say nothing about this
one: clients count per topic and partition, and begin a new topic at sequence 0 with the producer id they have. If a
branch took over its source's producer states, a live producer's first batch would be out of order here, or, worse,
pass for one of the remembered ones and be lost. So a branch knows no producer at first, as any new topic, and what is
derived from its headers is derived from this offset on. Unlike snapshots and indexes the file does not follow from the
log: it is durable before the branch can be seen.

The offset is in the name so that all partitions of a branch can have one file, made durable once. A truncation below
it adds a file: the lowest offset counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.log.segments.file_names import offset_in_name, offset_name
from flowstone.ports.files import Files
from flowstone.types import format_uuid, parse_uuid

BRANCH_POINT_SUFFIX = ".branch-point"
# An empty file in the directories of a branched or restored topic until the metadata has the topic. A start deletes a
# directory with this file if it does not know the topic: the request for it was never answered with success.
UNPUBLISHED = "unpublished"
_VERSION = "1"


class BranchPoint(NamedTuple):
    source_topic: str
    source_topic_id: bytes
    offset: int  # the first one that is not the source's


def branch_point_name(offset: int) -> str:
    return offset_name(offset, BRANCH_POINT_SUFFIX)


def encode_branch_source(source_topic: str, source_topic_id: bytes) -> bytes:
    """Return the content of the file, which is the same for every offset."""
    return (
        f"version: {_VERSION}\nsource_topic: {source_topic}\nsource_topic_id: {format_uuid(source_topic_id)}\n"
    ).encode()


def _decode_branch_source(data: bytes) -> tuple[str, bytes] | None:
    """Decode the file's content; return None if the text is not a whole file."""
    try:
        fields = dict(line.split(": ", 1) for line in data.decode("ascii").splitlines())
        topic_id = parse_uuid(fields["source_topic_id"])
        if fields["version"] != _VERSION or topic_id is None:
            return None
        return fields["source_topic"], topic_id
    except (ValueError, KeyError):
        return None


def read_branch_point(files: Files, directory: str, names: Sequence[str]) -> BranchPoint | None:
    """Return the branch point, or None if the partition is of no branch, from the sorted `names` in its directory."""
    for name in names:
        offset = offset_in_name(name, BRANCH_POINT_SUFFIX)
        if offset is not None:
            source = _decode_branch_source(files.read(f"{directory}/{name}"))
            if source is not None:
                return BranchPoint(*source, offset)
    return None
