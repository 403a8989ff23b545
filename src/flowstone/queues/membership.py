"""The membership in a share group: heartbeats to its coordinator, which answers with the partitions to fetch from.

A member that is fenced or unknown joins again at once. A coordinator that moved is looked up again.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError, Disconnected, LeaderMoved, Retriable, refusal
from flowstone.errors import ErrorCode
from flowstone.ports.clock import SystemClock
from flowstone.queues.connections import COORDINATOR, Connections
from flowstone.queues.held_tasks import Place
from flowstone.wire.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

sleep = SystemClock().sleep

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0
LEAVE_TIMEOUT_S = 5.0
_REJOIN = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_ADVICE: dict[int, str] = {
    ErrorCode.UNSUPPORTED_VERSION: "share groups are off in this cluster: raise its feature share.version to 1",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group exists and is no share group: choose another name",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has as many members as it may have (group.share.max.size)",
}


class Membership:
    def __init__(
        self, connections: Connections, group: str, topic: str, on_assignment: Callable[[frozenset[Place]], None]
    ) -> None:
        self._connections, self._group, self._topic = connections, group, topic
        self._on_assignment = on_assignment
        self.member_id = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        self._epoch = JOIN_EPOCH
        self._coordinator: Address | None = None
        self._must_tell_topics = True

    async def run(self) -> None:
        """Send heartbeats until it is cancelled. Raises ClientError if the group refuses the member for good."""
        retry_s = RETRY_FIRST_S
        while True:
            try:
                interval_s = await self._beat()
                retry_s = RETRY_FIRST_S
            except Retriable as error:
                if isinstance(error, LeaderMoved | Disconnected):
                    self._coordinator = None
                self._must_tell_topics = True
                interval_s, retry_s = retry_s, min(retry_s * 2, RETRY_MAX_S)
            await sleep(interval_s)

    async def leave(self) -> None:
        """Leave the group, if the coordinator answers."""
        if self._epoch > 0 and self._coordinator is not None:
            self._epoch = LEAVE_EPOCH
            with suppress(ClientError):
                await self._ask(self._coordinator, LEAVE_TIMEOUT_S)

    async def _beat(self) -> float:
        """Send a heartbeat; return how long to wait before the next one."""
        if self._coordinator is None:
            self._coordinator = await self._connections.coordinator(self._group)
        answer = await self._ask(self._coordinator)
        code = answer.error_code
        is_lost = code == ErrorCode.GROUP_ID_NOT_FOUND and self._epoch != JOIN_EPOCH
        if code in _REJOIN or is_lost:
            self._epoch, self._must_tell_topics = JOIN_EPOCH, True
            return 0.0
        if code:
            raise refusal(code, f"group {self._group}", _ADVICE.get(code, answer.error_message))
        self._epoch, self._must_tell_topics = answer.member_epoch, False
        if answer.assignment is not None:
            assigned = answer.assignment.topic_partitions
            self._on_assignment(frozenset((each.topic_id, index) for each in assigned for index in each.partitions))
        return answer.heartbeat_interval_ms / 1000

    async def _ask(self, coordinator: Address, timeout_s: float = 30.0) -> ShareGroupHeartbeatResponse:
        tells = self._must_tell_topics or self._epoch == JOIN_EPOCH
        request = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=[self._topic] if tells else None,
        )
        return await self._connections.ask(COORDINATOR, coordinator, request, ShareGroupHeartbeatResponse, timeout_s)
