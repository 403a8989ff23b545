"""The five paths that are walked: each function sets brokers up, runs one path and returns the functions it ran.

A path is run several times where it can be, and then only functions that run every time count. The broker does not
busy-poll (`idle.poll.us=0`), so that what runs does not depend on how fast the client is.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType

from flowstone.config import LONG_MAX
from flowstone.embedded import Broker, Cluster
from flowstone.embedded.thread_host import ThreadHost
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.planner import StreamPlanner
from pyspark_flowstone.reader import read_range
from tests.support.running_app import RunningApp
from tests.support.wire_client import TIMEOUT_MS, Client, batch_of, fetch_request, frame, produce_request
from tests.walk.recorder import Recorder, Walk, in_every

ROUNDS = 20  # the first of them warm up
COUNTED_ROUNDS = 5
RECORD_BYTES = 16 * 1024
TURNS_AFTER = 5  # turns of the loop in which a path may still finish what it began
DEADLINE_S = 20.0
QUIET_S = 1.0
KILLED = 3  # the first broker of a cluster is its controller
TOPIC, GROUP = "walked", "walkers"
QUICK_SETTINGS = {
    "idle_poll_us": "0",
    "offsets_topic_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
}
PRODUCE_VERSION, FETCH_VERSION, JOIN_VERSION, SYNC_VERSION = 9, 11, 5, 3


def produce() -> Walk:
    """Walk an acks=all produce of one 16 KB batch to a topic with flush.messages=1 of a single broker."""
    recorder = Recorder()
    with _broker() as (app, client):
        request = produce_request(TOPIC, batch_of(b"x" * RECORD_BYTES))

        def once() -> None:
            with recording(recorder, app):
                assert client.ask(PRODUCE_VERSION, request).responses[0].partition_responses[0].error_code == 0

        return Walk("acks=all produce", _repeated(recorder, once))


def fetch() -> Walk:
    """Walk a fetch that is parked and woken by a record, without the append that moves the high watermark."""
    recorder = Recorder()
    with _broker(log_flush_interval_messages=str(LONG_MAX)) as (app, client), app.client() as reader:
        batch = batch_of(b"x" * RECORD_BYTES)
        services = app.app.services
        partition = services.partitions.get(TOPIC, 0)

        def append() -> None:
            """Record nothing until the high watermark has moved: who waits for a commit is told before fetches are."""
            recorder.stop()
            partition.when_committed(partition.log.log_end_offset + 1, lambda _: recorder.start())
            partition.append(batch, 1)

        def once() -> None:
            request = fetch_request(TOPIC, client.end_offset(TOPIC), max_wait_ms=TIMEOUT_MS)
            with recording(recorder, app):
                reader.send(frame(FETCH_VERSION, request))
                _wait_until(lambda: app.call(lambda: bool(services.waiting.fetches)))
                app.call(append)
                reader.receive()

        return Walk("fetch that is parked and woken", _repeated(recorder, once))


def join() -> Walk:
    """Walk the JoinGroup with which the only member of a stable group joins it again."""
    recorder = Recorder()
    with _broker() as (app, client):
        client.ask(3, FindCoordinatorRequest(key=GROUP, key_type=0))
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=TIMEOUT_MS,
            rebalance_timeout_ms=TIMEOUT_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )
        _wait_until(lambda: client.ask(JOIN_VERSION, request).error_code == ErrorCode.MEMBER_ID_REQUIRED)
        request.member_id = client.ask(JOIN_VERSION, request).member_id

        def once() -> None:
            with recording(recorder, app):
                answer = client.ask(JOIN_VERSION, request)
            assert answer.error_code == 0
            sync = SyncGroupRequest(
                group_id=GROUP,
                generation_id=answer.generation_id,
                member_id=request.member_id,
                assignments=[SyncGroupRequestAssignment(member_id=request.member_id, assignment=b"a")],
            )
            assert client.ask(SYNC_VERSION, sync).error_code == 0

        return Walk("JoinGroup", _repeated(recorder, once))


def failover() -> Walk:
    """Walk a failover: what two brokers run after the death of the third until its partition has a leader and an ISR.

    One of the two is the controller. What the two ran in the second before (following, leases, timers) is left out.
    """
    before, recorder = Recorder(), Recorder()
    with Cluster(3) as cluster:
        cluster.create_topic(TOPIC, partitions=3)
        cluster.wait_in_sync(TOPIC)
        left = [cluster._host(node_id) for node_id in cluster.brokers if node_id != KILLED]
        partition = next(index for index in range(3) if cluster.leader(TOPIC, index) == KILLED)
        _call_on(left, before.start)
        time.sleep(QUIET_S)
        _call_on(left, recorder.start)
        cluster.kill(KILLED)
        _wait_until(lambda: KILLED not in {cluster.leader(TOPIC, partition), *cluster.in_sync(TOPIC, partition)})
        for _ in range(TURNS_AFTER):
            _call_on(left, lambda: None)
        _call_on(left, recorder.stop)
        quietly = set(before.take())
        return Walk("failover", tuple(code for code in recorder.take() if code not in quietly))


def micro_batch() -> Walk:
    """Walk a micro-batch of a streaming query without its JVM: the driver plans the batch, a task reads it."""
    recorder = Recorder()
    with Broker() as broker:
        broker.create_topic(TOPIC, partitions=1)
        host, _, port = broker.bootstrap.rpartition(":")
        options = parse_options(
            {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
        )
        planner = StreamPlanner(options)
        start = planner.initial()
        with Client((host, int(port))) as client:

            def once() -> None:
                nonlocal start
                assert client.produce(TOPIC, batch_of(b"x" * RECORD_BYTES)).error_code == 0
                recorder.start()
                end = planner.next_end(start, is_limited=False)
                rows = sum(
                    batch.num_rows for wanted in planner.ranges(start, end) for batch in read_range(options, wanted)
                )
                recorder.stop()
                assert rows == 1
                start = end

            walked = _repeated(recorder, once)
        planner.close()
    return Walk("Spark micro-batch", walked)


PATHS: tuple[Callable[[], Walk], ...] = (produce, fetch, join, failover, micro_batch)


@contextmanager
def recording(recorder: Recorder, app: RunningApp) -> Iterator[None]:
    """Record what the broker's loop runs in the `with` block and in the turns after it."""
    app.call(recorder.start)
    yield
    for _ in range(TURNS_AFTER):
        app.call(lambda: None)
    app.call(recorder.stop)


@contextmanager
def _broker(**settings: str) -> Iterator[tuple[RunningApp, Client]]:
    """Yield a broker with one topic, and a client of it."""
    with (
        tempfile.TemporaryDirectory(prefix="flowstone-walk-") as data,
        RunningApp(data, **QUICK_SETTINGS, **settings) as app,
        app.client() as client,
    ):
        assert client.create_topic(TOPIC) == 0
        yield app, client


def _repeated(recorder: Recorder, once: Callable[[], None]) -> tuple[CodeType, ...]:
    rounds = []
    for _ in range(ROUNDS):
        once()
        rounds.append(recorder.take())
    return in_every(rounds[-COUNTED_ROUNDS:])


def _call_on(hosts: list[ThreadHost], function: Callable[[], None]) -> None:
    async def call() -> None:
        function()

    for host in hosts:
        host._call(call())


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "the path's beginning was not reached"
