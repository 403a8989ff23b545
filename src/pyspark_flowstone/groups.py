"""Commits of a query's progress to a consumer group, for monitoring of lag.

The query resumes from its checkpoint; the group is never read. A failed commit therefore only causes a warning: the
next commit replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from flowstone.client import ClientError, Cluster
from flowstone.types import TopicPartition
from pyspark_flowstone.connections import CLIENT_ID
from pyspark_flowstone.loss import LOGGER

# A query must neither wait long for a missing coordinator nor look it up continuously.
COMMIT_DEADLINE_S = 3.0
COMMIT_AGAIN_AFTER_S = 10.0


class GroupProgress:
    def __init__(self, bootstrap: str, group_id: str) -> None:
        self._cluster = Cluster(bootstrap, client_id=CLIENT_ID, deadline_s=COMMIT_DEADLINE_S)
        self._group_id = group_id
        self._committed: dict[TopicPartition, int] = {}
        self._not_before_s = 0.0

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit finished offsets; repeated calls with the same offsets send no request."""
        new = {partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset}
        if not new or time.monotonic() < self._not_before_s:
            return
        try:
            self._cluster.commit(self._group_id, new)
        except ClientError as error:
            self._not_before_s = time.monotonic() + COMMIT_AGAIN_AFTER_S
            LOGGER.warning(
                "flowstone: the query continues, but its progress is not committed to group %s: %s",
                self._group_id,
                error,
            )
        else:
            self._committed.update(new)

    def close(self) -> None:
        self._cluster.close()


def warn_of_no_group() -> None:
    LOGGER.warning(
        "flowstone: this query commits to no consumer group, so its lag cannot be monitored; "
        "set the option groupId to a group of its own"
    )
