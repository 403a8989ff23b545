"""The addresses of the brokers, the leaders of partitions, and the connections to them.

Each broker has one connection for requests that are answered before the next is sent. Pipelined requests (fetches,
produces) borrow a connection of their own, since responses come in order. A known leader is forgotten when a broker
answers that it is not the leader, and looked up when it is next needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowstone.client.connection import CONNECT_TIMEOUT_S, Address, Connection
from flowstone.client.errors import BadAddress, Disconnected, LeaderMoved, UnknownTopic, refusal
from flowstone.client.retry_deadline import ATTEMPT_S_MIN, monotonic
from flowstone.client.security import ClientSecurity, security_of
from flowstone.client.wire_session import Response
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic

DEFAULT_PORT = 9092
PORT_MAX, PORT_DIGITS_MAX = 0xFFFF, 5
REQUEST_TIMEOUT_S = 30.0
IDLE_CONNECTIONS_MAX = 4  # per broker
FAILURES_TOLD_MAX = 3  # reasons in one message if no broker answers


class Leader(NamedTuple):
    address: Address
    epoch: int


class Brokers:
    def __init__(self, bootstrap: str, client_id: str, security: ClientSecurity | None = None) -> None:
        """Create the set without connecting. Raises BadAddress if `bootstrap` is not a list of HOST:PORT.

        Without `security` that of the address or of the process is used (`security.security_of`).
        """
        self._client_id, self._security = client_id, security or security_of(bootstrap)
        self._bootstrap = parse_bootstrap(bootstrap)
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._shared: dict[Address, Connection] = {}
        self._idle: dict[Address, list[Connection]] = {}

    # Connections

    def ask(self, address: Address, request: Message, kind: type[Response], timeout_s: float) -> Response:
        timeout_s = min(timeout_s, REQUEST_TIMEOUT_S)
        connection = self._shared.pop(address, None) or self._connect(address, timeout_s)
        answer = connection.ask(request, kind, timeout_s)
        self._shared[address] = connection  # stored only after the connection succeeded
        return answer

    def ask_any(self, request: Message, kind: type[Response], timeout_s: float) -> Response:
        """Return the answer of the first broker that gives one. Raises Disconnected, with every reason, if none does.

        Each broker gets a share of the time that is left, so that a silent one leaves time for the others.
        """
        failures: list[Disconnected] = []
        # Brokers with a connection first, then those that metadata named, then the bootstrap addresses.
        addresses = list(dict.fromkeys((*self._shared, *self._nodes.values(), *self._bootstrap)))
        ends_at_s = monotonic() + timeout_s
        for asked, address in enumerate(addresses):
            left_s = max(ends_at_s - monotonic(), ATTEMPT_S_MIN)
            try:
                return self.ask(address, request, kind, left_s / (len(addresses) - asked))
            except Disconnected as error:
                failures.append(error)
        raise Disconnected("; ".join(dict.fromkeys(map(str, failures[-FAILURES_TOLD_MAX:])))) from failures[-1]

    @property
    def node_ids(self) -> list[int]:
        """Return the ids of the brokers in the last `describe` response."""
        return sorted(self._nodes)

    def any_node_id(self) -> int | None:
        """Return the id of a broker in the last `describe` response, or None if it had none."""
        return min(self._nodes, default=None)

    def ask_node(self, node_id: int, request: Message, kind: type[Response], timeout_s: float) -> Response:
        """Return the answer of this broker. Raises Disconnected."""
        return self.ask(self._nodes[node_id], request, kind, timeout_s)

    def borrow(self, address: Address, timeout_s: float) -> Connection:
        """Return a connection for requests that are pipelined."""
        idle = self._idle.get(address)
        return idle.pop() if idle else self._connect(address, timeout_s)

    def give_back(self, connection: Connection) -> None:
        """Return a connection. It is kept for the next borrower if no response is outstanding."""
        idle = self._idle.setdefault(connection.address, [])
        if connection.is_idle and len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in (*self._shared.values(), *(each for idle in self._idle.values() for each in idle)):
            connection.close()
        self._shared.clear()
        self._idle.clear()

    def _connect(self, address: Address, timeout_s: float) -> Connection:
        try:
            return Connection(address, self._client_id, min(timeout_s, CONNECT_TIMEOUT_S), self._security)
        except Disconnected:
            # Its partitions may have other leaders by now, and its other connections have failed too.
            self._leaders = {each: leader for each, leader in self._leaders.items() if leader.address != address}
            for connection in self._idle.pop(address, ()):
                connection.close()
            raise

    # Leaders

    def leader(self, partition: TopicPartition, timeout_s: float) -> Leader:
        """Return a partition's leader. Raises LeaderMoved while an election runs, UnknownTopic, or Disconnected."""
        leader = self._leaders.get(partition)
        if leader is None:
            for topic in self.describe([partition.topic], timeout_s):
                _check_described(topic, partition)
            leader = self._leaders.get(partition)
            if leader is None:
                raise LeaderMoved(f"{partition} has no leader for now")
        return leader

    def by_leader(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> dict[Address, list[tuple[TopicPartition, Leader]]]:
        partitions = list(partitions)
        unknown = {each.topic for each in partitions if each not in self._leaders}
        if len(unknown) > 1:  # one request for all of them
            self.describe(sorted(unknown), timeout_s)
        shares: dict[Address, list[tuple[TopicPartition, Leader]]] = {}
        for partition in partitions:
            leader = self.leader(partition, timeout_s)
            shares.setdefault(leader.address, []).append((partition, leader))
        return shares

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition's leader, because it has moved."""
        self._leaders.pop(partition, None)

    def describe(
        self, topics: Sequence[str] | None, timeout_s: float, *, creates_missing: bool = False
    ) -> Sequence[MetadataResponseTopic]:
        """Return the cluster's description of the topics, None meaning all, and remember their leaders.

        With `creates_missing` the broker creates topics that do not exist, if its auto.create.topics.enable says so.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=creates_missing)
        answer = self.ask_any(request, MetadataResponse, timeout_s)
        self._nodes = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name or "", each.partition_index)
                address = self._nodes.get(each.leader_id)
                if address is None or each.error_code:
                    self._leaders.pop(partition, None)
                else:
                    self._leaders[partition] = Leader(address, each.leader_epoch)
        return answer.topics


def _check_described(topic: MetadataResponseTopic, partition: TopicPartition) -> None:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"there is no topic {partition.topic}: check the name, or create it first")
    if topic.error_code:
        raise refusal(topic.error_code, f"topic {partition.topic}")
    if all(each.partition_index != partition.partition for each in topic.partitions):
        raise UnknownTopic(
            f"topic {partition.topic} has {len(topic.partitions)} partitions, and no partition {partition.partition}"
        )


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """Return the addresses of a comma-separated list of HOST:PORT. Raises BadAddress if it is none."""
    addresses = [_address(each.strip()) for each in bootstrap.split(",") if each.strip()]
    if not addresses:
        raise BadAddress("no broker was named: give its address as HOST:PORT, or several with commas")
    return addresses


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return Address(text.strip("[]"), DEFAULT_PORT)
    if not (port.isascii() and port.isdecimal()):
        raise BadAddress(f"{text} is not HOST:PORT: give the broker's address as HOST:PORT, or several with commas")
    if len(port) > PORT_DIGITS_MAX or not 0 < int(port) <= PORT_MAX:
        raise BadAddress(f"{text}: there is no port {port}, ports are 1 to {PORT_MAX}: give the broker's HOST:PORT")
    return Address(host.strip("[]"), int(port))
