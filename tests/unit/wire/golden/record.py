"""Records what real clients send, for `test_golden_frames`.

    python tests/unit/wire/golden/record.py

A tiny broker on a loopback port answers just enough for a client to go on, and keeps the first frame of every API and
version that each client sends. Every client meets it twice: as a broker of today, and as one from before flexible
versions. Run it when the clients are upgraded; the files it writes are checked in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socketserver
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import NewTopic as PythonNewTopic

from flowstone.wire import codec, frames
from flowstone.wire.apis import API_VERSIONS_KEY, APIS
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
    InitProducerIdResponse,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

HOST = "127.0.0.1"
TOPIC = "golden"
TOPIC_ID = bytes(range(16))
CLIENT_SECONDS = 5


class Broker(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, flexible: bool) -> None:
        super().__init__((HOST, 0), Connection)
        self.port: int = self.server_address[1]
        self.frames: dict[tuple[int, int], bytes] = {}
        self.versions = [
            ApiVersionsResponseApiVersion(
                api_key=api.key,
                min_version=0 if api.key == 0 else api.min_version,
                max_version=api.max_version if flexible else max(api.flexible_from - 1, 0),
            )
            for api in APIS.values()
            if flexible or api.flexible_from > 0
        ]

    def answer(self, api_key: int, request: Message) -> Message:
        maker = ANSWERS.get(api_key)
        return maker(self, request) if maker is not None else APIS[api_key].response()


class Connection(socketserver.StreamRequestHandler):
    server: Broker

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, struct.error):
            while True:
                (size,) = struct.unpack(">i", self.rfile.read(4))
                self.serve(self.rfile.read(size))

    def serve(self, frame: bytes) -> None:
        view = memoryview(frame)
        header = frames.parse_request_header(view, 0)
        api = APIS[header.api_key]
        served = next((row for row in self.server.versions if row.api_key == api.key), None)
        version = header.api_version
        if served is None or version > served.max_version:
            assert api.key == API_VERSIONS_KEY, f"{api.name} {version} was not advertised"
            answer: Message = ApiVersionsResponse(error_code=35, api_keys=self.server.versions)
            version = 0
        else:
            self.server.frames.setdefault((api.key, version), frame)
            answer = self.server.answer(api.key, codec.request_decoder(api.key, version)(view, header.body_position))
        body = b"".join(codec.response_encoder(api.key, version)(answer))  # type: ignore[arg-type]
        start = frames.response_header(header.correlation_id, api.has_flexible_response_header(version))
        self.wfile.write(struct.pack(">i", len(start) + len(body)) + start + body)


def api_versions(broker: Broker, request: Message) -> Message:
    return ApiVersionsResponse(api_keys=broker.versions)


def metadata(broker: Broker, request: Message) -> Message:
    partition = MetadataResponsePartition(leader_epoch=0, replica_nodes=[0], isr_nodes=[0])
    return MetadataResponse(
        brokers=[MetadataResponseBroker(host=HOST, port=broker.port)],
        cluster_id="golden-cluster",
        controller_id=0,
        topics=[MetadataResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
    )


def produce(broker: Broker, request: Message) -> Message:
    partition = ProduceResponsePartition(base_offset=0, log_start_offset=0)
    return ProduceResponse(
        responses=[ProduceResponseTopic(name=TOPIC, topic_id=TOPIC_ID, partition_responses=[partition])]
    )


def fetch(broker: Broker, request: Message) -> Message:
    partition = FetchResponsePartition(last_stable_offset=0, log_start_offset=0, records=b"")
    return FetchResponse(responses=[FetchResponseTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])])


def list_offsets(broker: Broker, request: Message) -> Message:
    partition = ListOffsetsResponsePartition(offset=0, leader_epoch=0)
    return ListOffsetsResponse(topics=[ListOffsetsResponseTopic(name=TOPIC, partitions=[partition])])


def find_coordinator(broker: Broker, request: Message) -> Message:
    coordinators = [
        FindCoordinatorResponseCoordinator(key=key, host=HOST, port=broker.port)
        for key in request.coordinator_keys  # type: ignore[attr-defined]
    ]
    return FindCoordinatorResponse(host=HOST, port=broker.port, coordinators=coordinators)


def describe_cluster(broker: Broker, request: Message) -> Message:
    brokers = [DescribeClusterResponseBroker(host=HOST, port=broker.port)]
    return DescribeClusterResponse(cluster_id="golden-cluster", controller_id=0, brokers=brokers)


def init_producer_id(broker: Broker, request: Message) -> Message:
    return InitProducerIdResponse(producer_id=1000)


ANSWERS: dict[int, Callable[[Broker, Message], Message]] = {
    0: produce,
    1: fetch,
    2: list_offsets,
    3: metadata,
    10: find_coordinator,
    18: api_versions,
    22: init_producer_id,
    60: describe_cluster,
}


def drive_confluent_kafka(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "client.id": "golden"})
    producer.produce(TOPIC, key=b"key", value=b"value")
    producer.flush(CLIENT_SECONDS)
    consumer = Consumer({"bootstrap.servers": address, "group.id": "golden", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    consumer.poll(1)
    consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=CLIENT_SECONDS)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": address})
    topic = ConfigResource(ResourceType.TOPIC, TOPIC)
    futures = [
        admin.create_topics([NewTopic(TOPIC, 3, 1, config={"retention.ms": "1000"})]),
        admin.create_partitions([NewPartitions(TOPIC, 6)]),
        admin.describe_configs([topic]),
        admin.alter_configs([ConfigResource(ResourceType.TOPIC, TOPIC, set_config={"retention.ms": "1"})]),
        admin.list_offsets({TopicPartition(TOPIC, 0): OffsetSpec.latest()}),
        admin.delete_records([TopicPartition(TOPIC, 0, 5)]),
        admin.delete_topics([TOPIC]),
    ]
    finish([future for group in futures for future in group.values()])
    finish([admin.describe_cluster(include_authorized_operations=True)])


def finish(futures: list[object]) -> None:
    for future in futures:
        # The answers are empty: clients complain, but what they sent is recorded.
        with contextlib.suppress(Exception):
            future.result(CLIENT_SECONDS)  # type: ignore[attr-defined]


def drive_kafka_python(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, client_id="golden")
    producer.send(TOPIC, key=b"key", value=b"value")
    producer.flush(CLIENT_SECONDS)
    producer.close(CLIENT_SECONDS)
    consumer = KafkaConsumer(bootstrap_servers=address, client_id="golden")
    partition = PythonTopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    consumer.poll(1000)
    consumer.end_offsets([partition])
    consumer.close()
    admin = KafkaAdminClient(bootstrap_servers=address, client_id="golden")
    for call in (
        lambda: admin.create_topics([PythonNewTopic(TOPIC, 3, 1)]),
        lambda: admin.delete_topics([TOPIC]),
        lambda: admin.describe_cluster(),
        lambda: admin.describe_log_dirs(),
    ):
        with contextlib.suppress(Exception):
            call()
    admin.close()


def drive_aiokafka(address: str) -> None:
    asyncio.run(asyncio.wait_for(_drive_aiokafka(address), 4 * CLIENT_SECONDS))


async def _drive_aiokafka(address: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=address, client_id="golden", enable_idempotence=True) as producer:
        await producer.send_and_wait(TOPIC, key=b"key", value=b"value")
    async with AIOKafkaConsumer(bootstrap_servers=address, client_id="golden") as consumer:
        partition = AioTopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        await consumer.getmany(timeout_ms=1000)
        await consumer.end_offsets([partition])
    admin = AIOKafkaAdminClient(bootstrap_servers=address, client_id="golden")
    await admin.start()
    with contextlib.suppress(Exception):
        await admin.delete_topics([TOPIC])
    await admin.close()


CLIENTS = {
    "confluent-kafka": drive_confluent_kafka,
    "kafka-python": drive_kafka_python,
    "aiokafka": drive_aiokafka,
}


def main() -> None:
    for name, drive in CLIENTS.items():
        recorded: dict[tuple[int, int], bytes] = {}
        for flexible in (True, False):
            with Broker(flexible) as broker:
                threading.Thread(target=broker.serve_forever, daemon=True).start()
                drive(f"{HOST}:{broker.port}")
                broker.shutdown()
            recorded |= broker.frames
        lines = [f"{APIS[key].name} {version} {frame.hex()}\n" for (key, version), frame in sorted(recorded.items())]
        Path(__file__).with_name(f"{name}.txt").write_text("".join(lines), encoding="utf-8")
        print(name, len(lines))


if __name__ == "__main__":
    main()
