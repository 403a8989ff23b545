"""Classifies an OSError of a log's file: refuse the request, or take the log offline."""

from __future__ import annotations

from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, NO_SPACE
from flowstone.types import TopicPartition


def file_error(topic_partition: TopicPartition, error: OSError) -> ApiError | StorageFault:
    """Return an ApiError for a transient error, such as a full disk, or the StorageFault that takes the log offline."""
    if error.errno in NO_SPACE or error.errno in NO_DESCRIPTORS:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition}: {error.strerror}")
    return StorageFault(f"{topic_partition}: {error}")
