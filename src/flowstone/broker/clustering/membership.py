"""A broker's membership of its cluster: joining, registration, and renewing the lease that lets it lead.

The lease is renewed by a round trip that starts on the event loop, so that a broker whose loop is blocked does not
renew it, even if the threads of a client library still send heartbeats. A renewal extends the lease under which
partitions are led, counted from when it was sent, and for less than the time after which the cluster considers a silent
member dead: this broker has stopped acknowledging before others lead.

After a membership was lost (a long pause, a network partition) this broker joins again as a new member and registers
first. The registration goes through the metadata log, so the broker has read every decision made in between before it
leads again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from flowstone.cluster.decisions.registration import register_broker
from flowstone.cluster.decisions.withdrawals import shut_down
from flowstone.cluster.image.cluster_image import BrokerImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.logs.consensus import Consensus
from flowstone.cluster.metadata import Metadata
from flowstone.errors import ApiError, StartupError, StorageFault
from flowstone.ports.clock import Clock, done_within
from flowstone.replication.lease import Lease

logger = logging.getLogger(__name__)

# The lease, as a share of the time after which a silent member is considered dead.
LEASE_SHARE = 2 / 3
RENEWALS_PER_SESSION = 6
REJOIN_PAUSE_S = 0.5
# How long a stopping broker waits until others have taken over its partitions.
HAND_OVER_WAIT_S = 5.0


class Membership:
    def __init__(self, consensus: Consensus, metadata: Metadata, lease: Lease, clock: Clock, directory_id: str) -> None:
        self._consensus, self._metadata, self._lease, self._clock = consensus, metadata, lease, clock
        self._directory_id = directory_id
        self._broker: BrokerImage
        # False until the present incarnation is registered; the lease is not renewed before that.
        self._registered = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """Return the broker epoch of the present registration."""
        return self._broker.epoch

    async def join(self, broker: BrokerImage, *, is_clean: bool, is_empty: bool) -> None:
        """Register the broker and renew its membership from now on. Raises StartupError if it cannot be a member.

        See `register_broker` for `is_clean` and `is_empty`.
        """
        self._broker = broker
        await self._register(is_clean=is_clean, is_empty=is_empty)
        await self._renew()
        self._keeping = asyncio.ensure_future(self._keep())

    async def hand_over(self) -> None:
        """Let other brokers take over this broker's partitions, and end its membership: it is about to stop."""
        self._stop()
        node_id, epoch = self._broker.node_id, self._broker.epoch
        handing = asyncio.ensure_future(self._metadata.change(lambda image: shut_down(image, node_id, epoch)))
        if not await done_within(self._clock, handing, HAND_OVER_WAIT_S):
            handing.cancel()
            logger.warning("broker %d stops without handing over its partitions: the cluster did not answer", node_id)
        elif (error := handing.exception()) is not None:
            logger.warning("broker %d stops without handing over its partitions: %s", node_id, error)
        self._lease.end()
        await self._consensus.leave()

    def abort(self) -> None:
        self._stop()
        self._consensus.abort()

    def _stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    async def _register(self, *, is_clean: bool, is_empty: bool = False) -> None:
        self._registered = False
        incarnation = await self._consensus.join(self._broker.node_id, self._directory_id)
        broker = replace(self._broker, incarnation=incarnation)
        registration = await self._metadata.change(
            lambda image: register_broker(image, broker, is_clean=is_clean, new_id=random_id, is_empty=is_empty)
        )
        self._broker = replace(broker, epoch=registration.epoch)
        self._registered = True

    @property
    def _is_member(self) -> bool:
        node_id, incarnation = self._broker.node_id, self._broker.incarnation
        return any(member == (node_id, incarnation) for member in self._consensus.members)

    @property
    def _is_forgotten(self) -> bool:
        """Return whether this broker's registration was removed by an operator."""
        return self._registered and self._broker.node_id not in self._metadata.image.brokers

    async def _keep(self) -> None:
        """Renew the membership, and join again after it was lost, until the broker stops."""
        interval_s = self._consensus.session_timeout_s / RENEWALS_PER_SESSION
        while True:
            await self._clock.sleep(interval_s)
            if self._is_forgotten or (not await self._renew() and not self._is_member):
                await self._rejoin()

    async def _renew(self) -> bool:
        sent_s = self._clock.monotonic()
        is_member = self._registered and await self._consensus.renew()
        if is_member:
            self._lease.extend(sent_s + LEASE_SHARE * self._consensus.session_timeout_s)
        return is_member

    async def _rejoin(self) -> None:
        logger.warning("broker %d is no longer a member of its cluster, and joins again", self._broker.node_id)
        try:
            await self._register(is_clean=True)
        except (StartupError, StorageFault, ApiError) as error:
            logger.warning("broker %d cannot join yet: %s", self._broker.node_id, error)
            await self._clock.sleep(REJOIN_PAUSE_S)
        else:
            await self._renew()
