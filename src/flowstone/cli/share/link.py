"""The connection of `flowstone share` to the brokers, with errors for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Annotated, Self

import typer

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, check_reachable
from flowstone.cli.common.errors import CommandError
from flowstone.client.brokers import Brokers
from flowstone.client.errors import ClientError, Refused
from flowstone.client.offsets import list_offsets
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.share_groups import ListedShareGroup, ShareGroupDescription, ShareGroups, ShareOffset
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

CLIENT_ID = "flowstone-cli"
NAME_BYTES_MAX = 2**15 - 1

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The share group's name.")]


class ShareLink:
    def __init__(self, bootstrap: str) -> None:
        """Create the link. Raises CommandError if nothing listens at the address."""
        check_reachable(bootstrap)
        self.brokers = Brokers(bootstrap, CLIENT_ID)
        self._groups = ShareGroups(self.brokers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.brokers.close()
        if isinstance(error, Refused) and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise CommandError(f"{error}: see `flowstone share list`") from None
        if isinstance(error, ClientError):
            raise CommandError(str(error)) from None

    def list_all(self) -> list[ListedShareGroup]:
        return self._groups.list_all(self.deadline())

    def describe(self, group: str) -> ShareGroupDescription:
        return self._groups.describe(_checked(group), self.deadline())

    def offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        return self._groups.offsets(_checked(group), self.deadline())

    def reset(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self._groups.reset(_checked(group), offsets, self.deadline())

    def delete(self, group: str) -> None:
        self._groups.delete(_checked(group), self.deadline())

    def alter(self, group: str, settings: Mapping[str, str], unset: Sequence[str]) -> None:
        self._groups.alter(_checked(group), settings, unset, self.deadline())

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic. Raises CommandError if there is none."""
        for described in self.brokers.describe([topic], REQUEST_TIMEOUT_S):
            if not described.error_code:
                return [TopicPartition(topic, index) for index in range(len(described.partitions))]
        raise CommandError(f"there is no topic {topic}: see `flowstone topic list`")

    def offsets_at(self, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time, or of a special place, by partition."""
        found = list_offsets(self.brokers, dict.fromkeys(partitions, timestamp), self.deadline())
        return {place: each.offset for place, each in found.items()}

    def deadline(self) -> RetryDeadline:
        return RetryDeadline(REQUEST_TIMEOUT_S, from_now=True)


def _checked(group: str) -> str:
    if not 0 < len(group.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise CommandError(f"a group's name has 1 to {NAME_BYTES_MAX} bytes")
    try:
        group.encode()
    except UnicodeEncodeError:
        raise CommandError("the group's name is not text in UTF-8") from None
    return group
