"""A broker's place in its cluster: it joins, registers itself, and proves over and over that it is still a member.

The proof is a round trip that begins on the event loop, so that a broker whose loop stands still has none, whatever the
threads of a client library go on sending. It extends the lease under which partitions are led, counted from when it was
sent, and for less than the time after which the cluster takes a silent member for dead: before others lead, this broker
has stopped acknowledging.

A membership that was lost (a long pause, a network cut) is taken up again as a new one, under which this broker first
registers: that goes through the metadata log, so it has seen everything decided without it before it leads again.
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

# Of the time after which a silent member is taken for dead.
LEASE_SHARE = 2 / 3
RENEWALS_PER_SESSION = 6
REJOIN_PAUSE_S = 0.5
# How long a broker that stops waits for others to lead in its place.
HAND_OVER_WAIT_S = 5.0


class Membership:
    def __init__(self, consensus: Consensus, metadata: Metadata, lease: Lease, clock: Clock, directory_id: str) -> None:
        self._consensus, self._metadata, self._lease, self._clock = consensus, metadata, lease, clock
        self._directory_id = directory_id
        self._broker: BrokerImage
        # Held while there is no registration of the present incarnation: then nothing renews the lease.
        self._registered = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """That of the present registration."""
        return self._broker.epoch

    async def join(self, broker: BrokerImage, *, is_clean: bool, is_empty: bool) -> None:
        """Registers the broker; from now on it is kept a member. StartupError if it cannot be one.

        See `register_broker` for what it brings with it.
        """
        self._broker = broker
        await self._register(is_clean=is_clean, is_empty=is_empty)
        await self._renew()
        self._keeping = asyncio.ensure_future(self._keep())

    async def hand_over(self) -> None:
        """Before a stop: others lead what they can, and this broker is no member any more."""
        self._stop()
        node_id, epoch = self._broker.node_id, self._broker.epoch
        handing = asyncio.ensure_future(self._metadata.change(lambda image: shut_down(image, node_id, epoch)))
        if not await done_within(self._clock, handing, HAND_OVER_WAIT_S):
            handing.cancel()
            logger.warning("broker %d stops without handing over what it leads: nobody answers", node_id)
        elif (error := handing.exception()) is not None:
            logger.warning("broker %d stops without handing over what it leads: %s", node_id, error)
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
        """Whether it was unregistered, having been taken for dead."""
        return self._registered and self._broker.node_id not in self._metadata.image.brokers

    async def _keep(self) -> None:
        """Runs as long as the broker does."""
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
