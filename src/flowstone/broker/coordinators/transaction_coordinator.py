"""The transaction coordinator of this broker: transactional ids and their transactions, in `__transaction_state`.

Owns what concerns all of the broker's shards together: the memory of transactions, the producer ids they are given, and
the markers that end them. `CoordinatorHost` decides where shards are hosted, and the state machine
(`coordinator.transactions`) handles requests.

Partition leaders and group coordinators call it too, for producers that write without having added the partition
(`add_or_verify`). If the shard is on another broker, that broker is sent an AddPartitionsToTxn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.coordinator_host import CoordinatorHost, HostServices
from flowstone.broker.coordinators.internal_topics import transactions_topic
from flowstone.broker.coordinators.local_markers import LocalMarkers
from flowstone.broker.coordinators.marker_sender import MarkerSender
from flowstone.broker.coordinators.producer_id_stock import ProducerIdStock
from flowstone.broker.coordinators.refusal_log import RefusalLog
from flowstone.broker.coordinators.transaction_search import FoundTransaction, listing_of, search
from flowstone.broker.coordinators.waiting_additions import WaitingAdditions
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import NO_LEADER
from flowstone.cluster.image.features import TRANSACTION_VERSION
from flowstone.config import BrokerConfig
from flowstone.coordinator.effects import Effects
from flowstone.coordinator.runtime import HostedShard, Token
from flowstone.coordinator.transactions import record_format as transaction_records
from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.counts import OpenTransactions, TransactionCounts
from flowstone.coordinator.transactions.messages import V2, AddPartitionsRequest
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.errors import ApiError, ErrorCode
from flowstone.memory_budget import MemoryBudget
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnRequestTransaction,
    AddPartitionsToTxnResponse,
)

# How long another broker's coordinator may take to add or verify partitions.
ADD_OR_VERIFY_TIMEOUT_S = 10.0


TransactionCall = Callable[[TransactionShard, int, Token], Effects[Any]]


class TransactionCoordinator:
    def __init__(
        self, services: HostServices, local_markers: LocalMarkers, make_peers: Callable[[], BrokerPeers]
    ) -> None:
        """Create a coordinator without shards; `make_peers` makes a set of connections to other brokers.

        Markers have connections of their own, because their requests wait for commits.
        """
        config = services.config
        self._node_id, self._metadata = config.node_id, services.metadata
        self.local_markers = local_markers
        refusals = RefusalLog(
            "a transactional id or a partition of a transaction was refused: all transactional ids",
            "transaction.memory.max.bytes",
            "use fewer transactional ids",
            services.clock.monotonic,
        )
        self.memory = MemoryBudget(config.transaction_memory_max_bytes, refusals.refused)
        self.counts = TransactionCounts()
        self.producer_ids = ProducerIdStock(services.metadata, services.clock)
        self._peers, self._marker_peers, self._search_peers = make_peers(), make_peers(), make_peers()
        self._additions = WaitingAdditions(services.clock, self._add_now)
        self._sender = MarkerSender(
            config.node_id,
            services.metadata,
            services.clock,
            local_markers,
            self._marker_peers,
            self._is_hosted,
            self._additions.ended,
        )
        transaction_config = _transaction_config(config)
        self._host = CoordinatorHost(
            transactions_topic(config),
            transaction_records,
            lambda leader_epoch: TransactionShard(
                *(transaction_config, leader_epoch, self.producer_ids.take, self._transaction_version, self.memory),
                self.counts,
            ),
            services,
            self._sender.send,
        )

    def close(self) -> None:
        """Refuse all waiting and further requests, and stop sending markers, because the broker stops."""
        self._sender.close()
        self._host.close()
        self.producer_ids.close()
        self._peers.close()
        self._marker_peers.close()
        self._search_peers.close()

    async def wait_loaded(self, timeout_s: float) -> None:
        """Return when each shard hosted now has been loaded or has failed to load, or after `timeout_s`."""
        await self._host.wait_loaded(timeout_s)

    def partition_of(self, transactional_id: str) -> TopicPartition | None:
        """Return the partition that has the transactional id's state, or None while the topic does not exist."""
        return self._host.partition_of(transactional_id)

    async def create_topic(self) -> None:
        """Create `__transaction_state` unless it exists. Raises ApiError if that fails."""
        await self._host.create_topic()

    def request(self, transactional_id: str, call: TransactionCall, token: Token | None = None) -> Token:
        """Pass a request to the transactional id's shard; return the promise of its response, `token` if given.

        The promise raises ApiError if the request fails.
        """
        return self._host.request(transactional_id, call, token)

    def add_partitions(self, asked: AddPartitionsRequest) -> Token:
        """Add partitions to a transaction; wait a little if the producer's transaction before is being ended.

        Its AddPartitionsResponse, or ApiError, comes with the promise.
        """
        return self._additions.add(asked)

    def request_all(self, call: TransactionCall) -> list[Token]:
        """Pass a request to every shard; return the promises of their responses."""
        return self._host.request_all(call)

    def request_each(self, call: TransactionCall) -> Iterator[Token]:
        """Pass a request to one shard after the other as the iterator advances; yield their promises."""
        return self._host.request_each(call)

    def open_transactions(self) -> list[OpenTransactions]:
        """Return what each loaded shard has open."""
        return [machine.open_transactions() for machine in self._host.machines()]

    async def find_by_producer(self, producer_id: int) -> FoundTransaction | None:
        """Return the transactional id that has the producer id, or None if no coordinator of the cluster knows one.

        Raises ApiError if a coordinator could not be asked.
        """
        asked = listing_of(producer_id)
        tokens = self.request_all(lambda shard, now_ms, token: shard.list_transactions(now_ms, token, asked))
        others = [each for each, broker in self._metadata.image.brokers.items() if not broker.is_fenced]
        others = [each for each in others if each != self._node_id]
        return await search(tokens, self._search_peers, others, producer_id)

    # For partition leaders and group coordinators

    def is_verified(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> bool:
        """Return whether the partition is known here, for certain, to be in the producer's ongoing transaction.

        If not, `add_or_verify` tells: the state may be on another broker, or not committed yet.
        """
        shard = self._host.shard_of(transactional_id)
        return shard is not None and bool(
            shard.look(lambda machine: machine.has_partition(transactional_id, producer_id, producer_epoch, partition))
        )

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Add partitions to a transaction, or verify that they are in it; return the error code of each partition.

        All codes are COORDINATOR_NOT_AVAILABLE if the coordinator cannot be reached.
        """
        asked = AddPartitionsRequest(transactional_id, producer_id, producer_epoch, frozenset(partitions), V2)
        try:
            if self._host.shard_of(transactional_id) is not None:
                codes = await self.add_or_verify_here(asked, verify_only=verify_only, may_wait=True)
            else:
                codes = await self._ask_coordinator(asked, verify_only=verify_only)
        except ApiError as error:
            codes = dict.fromkeys(partitions, error.code)
        return codes

    async def add_or_verify_here(
        self, asked: AddPartitionsRequest, *, verify_only: bool, may_wait: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Do the same as `add_or_verify` in a shard of this broker. Raises ApiError if it is not hosted here or not
        loaded.

        With `may_wait` an addition may wait as in `add_partitions`.
        """
        key = asked.transactional_id
        if verify_only:
            verified = await self.request(
                key, lambda shard, now_ms, token: shard.verify_partitions(now_ms, token, asked)
            )
            errors: Mapping[TopicPartition, ErrorCode] = verified.errors
            return errors
        added = await (self.add_partitions(asked) if may_wait else self._add_now(asked))
        return dict.fromkeys(asked.partitions, added.error_code)

    async def _ask_coordinator(
        self, asked: AddPartitionsRequest, *, verify_only: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        place = self.partition_of(asked.transactional_id)
        placed = None if place is None else self._metadata.image.partition(place)
        if placed is None or placed.leader in (NO_LEADER, self._node_id):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = AddPartitionsToTxnRequest(transactions=[_transaction_of(asked, verify_only=verify_only)])
        try:
            response = await self._peers.ask(
                placed.leader, request, AddPartitionsToTxnResponse, ADD_OR_VERIFY_TIMEOUT_S
            )
        except ClientError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if response.error_code:
            raise ApiError(ErrorCode(response.error_code))
        told = {
            TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
            for transaction in response.results_by_transaction
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        }
        return {each: told.get(each, ErrorCode.UNKNOWN_SERVER_ERROR) for each in asked.partitions}

    def _add_now(self, asked: AddPartitionsRequest) -> Token:
        return self.request(
            asked.transactional_id, lambda shard, now_ms, token: shard.add_partitions(now_ms, token, asked)
        )

    # For the shards

    def _transaction_version(self) -> int:
        return self._metadata.image.feature_level(TRANSACTION_VERSION)

    def _is_hosted(self, shard: HostedShard[TransactionShard], transactional_id: str) -> bool:
        return self._host.shard_of(transactional_id) is shard


def _transaction_of(asked: AddPartitionsRequest, *, verify_only: bool) -> AddPartitionsToTxnRequestTransaction:
    indexes: defaultdict[str, list[int]] = defaultdict(list)
    for each in asked.partitions:
        indexes[each.topic].append(each.partition)
    return AddPartitionsToTxnRequestTransaction(
        transactional_id=asked.transactional_id,
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        verify_only=verify_only,
        topics=[AddPartitionsToTxnRequestTopic(name=name, partitions=each) for name, each in indexes.items()],
    )


def _transaction_config(config: BrokerConfig) -> TransactionConfig:
    return TransactionConfig(
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        abort_timed_out_interval_ms=config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        remove_expired_interval_ms=config.transaction_remove_expired_transaction_cleanup_interval_ms,
    )
