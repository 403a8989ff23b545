"""One simulation of a whole cluster, from one seed: a start, load, faults, healing, and the verdict.

Everything that happens is drawn from the seed, so that the same seed gives the same run, turn by turn: `Outcome.digest`
tells two runs apart.
"""

from __future__ import annotations

import gc
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from flowstone.errors import ErrorCode
from flowstone.log.segments import preallocation
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
)
from tests.faults.checker import ACKS_ALL, Fault, ObservedLog

from .client import Client, Unanswered
from .clock import ProcessClock
from .cluster import Cluster
from .consumer import Consumer
from .determinism import chance_from
from .faults import EVERYTHING, WITH_TRANSACTIONS, Faults
from .history import ClusterHistory
from .invariants import Invariants
from .loop import SimulatedLoop
from .member import Member
from .operator import Operator
from .producer import Producer
from .queues.load import COMPACTED as COMPACTED_TASKS
from .queues.load import TASKS, QueueLoad
from .queues.load import TOPICS as QUEUE_TOPICS
from .transactions.late_markers import LateMarkers
from .transactions.load import BALANCES, NewTopic, TransactionLoad
from .transactions.load import TOPICS as TRANSACTION_TOPICS

BROKER_COUNT = 3
TOPICS, PARTITIONS = ("t0", "t1"), 2
GROUP_ID, MEMBERS = "g", 2
START_S_MAX = 20.0
FAULTS_S = 12.0
# In so many seeds an operator is at work.
OPERATOR_SHARE = 0.4
# From when everything has healed.
PROGRESS_S_MAX = 30.0
JUDGEMENT_S_MAX = 60.0
# Until share groups have nothing left: some locks, delays and letters later.
QUEUES_S_MAX = 90.0
LOOK_S = 0.1
CLIENT_HOST = "c"
TRACEBACK_ENTRIES = 4
SPACE = {"ZEROS_FROM_BYTES": 300, "ZEROS_BYTES_MIN": 400, "ZEROS_BYTES_MAX": 1500}
COLLECTIONS = 2  # the first one finalizes tasks that killed processes left behind, and so keeps what they had


class Loads(NamedTuple):
    """What clients do in a simulation."""

    has_plain_traffic: bool
    has_transactions: bool
    has_queues: bool = False


PLAIN_TRAFFIC, TRANSACTIONS = Loads(True, False), Loads(False, True)
# One seed after the other has each of these.
QUEUES = Loads(False, False, True)
ALL_LOADS = (PLAIN_TRAFFIC, TRANSACTIONS, Loads(True, True), QUEUES)


@dataclass
class Outcome:
    seed: int
    digest: int = 0
    problems: list[str] = field(default_factory=list)
    acknowledged_count: int = 0
    seen_count: int = 0
    committed_count: int = 0
    transaction_count: int = 0
    task_count: int = 0
    turn_count: int = 0
    simulated_s: float = 0.0
    recovered_s: float = 0.0
    story: list[str] = field(default_factory=list)


class Simulation:
    def __init__(self, seed: int, faults: Sequence[str], loads: Loads, *, ends_early: bool) -> None:
        self.outcome = Outcome(seed)
        self._faults, self._ends_early = faults, ends_early
        self._random = Random(seed)
        self.loop = SimulatedLoop()
        self.cluster = Cluster(self.loop, self._random, BROKER_COUNT, self.note)
        self.history = ClusterHistory()
        self.invariants = Invariants(self.cluster, frozenset({BALANCES, COMPACTED_TASKS}), frozenset({TASKS}))
        self.history.on_acknowledged = self.invariants.acknowledged
        self._late_markers = LateMarkers(self.cluster)
        self._process = self.cluster.new_process("clients")
        self._clock = ProcessClock(self.loop)
        self._partitions = [TopicPartition(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
        self._producers: list[Producer] = []
        self._consumers: list[Consumer] = []
        self._members: list[Member] = []
        self._loads = loads
        self._transactions: TransactionLoad | None = None
        self._queues: QueueLoad | None = None
        self._is_looking = True

    def note(self, what: str) -> None:
        self.outcome.story.append(f"{self.loop.time():8.3f} {what}")
        self.loop.note(what.encode())

    def run(self) -> Outcome:
        try:
            self._play()
        except Exception as error:  # whatever goes wrong belongs to the seed
            self._problem(f"{type(error).__name__}: {error}")
            self.outcome.story += self.invariants.describe()
        outcome = self.outcome
        outcome.problems += map(str, (*self.history.anomalies, *self.history.groups.anomalies))
        outcome.problems += self.invariants.violations + self._late_markers.violations
        outcome.problems += self.cluster.failures + self.loop.unhandled
        outcome.digest, outcome.turn_count = self.loop.digest, self.loop.turn_count
        outcome.simulated_s = self.loop.time()
        outcome.acknowledged_count = self.history.acknowledged_count
        outcome.seen_count = self.history.seen_count
        outcome.committed_count = self.history.groups.acknowledged_count
        if self._transactions is not None:
            outcome.transaction_count = self._transactions.history.committed_count
        if self._queues is not None:
            outcome.task_count = self._queues.history.finished_count
        self.loop.close()
        return outcome

    def _play(self) -> None:
        loop = self.loop
        self.cluster.start()
        self._await(self.cluster.not_serving, START_S_MAX)
        loop.run(self._process, self._create_topics(), START_S_MAX)
        self._start_clients()
        self._look()
        faults = Faults(self.cluster, self.history, self._random, self._faults)
        faults.schedule(FAULTS_S)
        loop.run_until(loop.time() + FAULTS_S, self._is_enough)
        if self._is_enough():
            return
        faults.end()
        self._operator.is_stopping = True
        self.cluster.heal()
        self._await_progress()
        self._judge()

    def _await(self, waiting_for: Callable[[], list[str]], timeout_s: float) -> None:
        until_s = self.loop.time() + timeout_s
        while (waiting := waiting_for()) and self.loop.time() < until_s:
            self.loop.run_until(min(self.loop.time() + LOOK_S, until_s))
        if waiting:
            raise TimeoutError(f"no progress of {', '.join(waiting)} in {timeout_s} simulated seconds")

    def _is_enough(self) -> bool:
        """Whether nothing more need be found."""
        found = self.invariants.violations or self.history.anomalies or self.history.groups.anomalies
        found = found or self._late_markers.violations
        return self._ends_early and bool(found)

    # The load

    def _client(self, versions: Mapping[type[Message], int] | None = None) -> Client:
        network = self.cluster.network.host(CLIENT_HOST, self._process)
        return Client(network, self._clock, self._random, self.cluster.addresses, versions)

    async def _create_topics(self) -> None:
        client = self._client()
        wanted_topics = [NewTopic(topic, PARTITIONS) for topic in TOPICS]
        wanted_topics += TRANSACTION_TOPICS * self._loads.has_transactions + QUEUE_TOPICS * self._loads.has_queues
        for topic, count, configs in wanted_topics:
            wanted = CreateTopicsRequestTopic(
                name=topic,
                num_partitions=count,
                replication_factor=BROKER_COUNT,
                configs=[CreateTopicsRequestConfig(name=name, value=value) for name, value in configs.items()],
            )
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            while code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                try:
                    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1000)
                    answer = await client.ask_any(request, CreateTopicsResponse)
                    code = ErrorCode(answer.topics[0].error_code)
                except Unanswered:
                    await client.back_off()
        client.close()

    def _start_clients(self) -> None:
        if self._loads.has_transactions:
            self._transactions = TransactionLoad(self._client, self.history, self.cluster)
            for each in self._transactions.running():
                self._process.start(each)
        if self._loads.has_queues:
            self._queues = QueueLoad(self._client, self.history, self.cluster)
            for each in self._queues.running():
                self._process.start(each)
        if self._loads.has_plain_traffic:
            self._start_plain_traffic()
        partitions = [*self._partitions] if self._loads.has_plain_traffic else []
        if self._transactions is not None:
            partitions += self._transactions.partitions
        if self._queues is not None:
            partitions += self._queues.partitions
        node_ids = [machine.node_id for machine in self.cluster.machines]
        self._operator = Operator(self._client(), partitions, node_ids, self.note)
        if self._random.random() < OPERATOR_SHARE:
            self._process.start(self._operator.run())

    def _start_plain_traffic(self) -> None:
        for number, partition in enumerate(self._partitions):
            acks = 1 if number % len(self._partitions) == len(self._partitions) - 1 else ACKS_ALL
            self._producers.append(Producer(self._client(), self.history, f"p{number}", partition, acks))
            rack = self._random.choice(("", *(machine.name for machine in self.cluster.machines)))
            self._consumers.append(Consumer(self._client(), self.history, partition, rack))
        extra = self._random.choice(self._partitions)
        self._producers.append(Producer(self._client(), self.history, "q", extra, ACKS_ALL))
        self._members = [Member(self._client(), self.history, GROUP_ID, TOPICS[0], PARTITIONS) for _ in range(MEMBERS)]
        clients: list[Producer | Consumer | Member] = [*self._producers, *self._consumers, *self._members]
        for each in clients:
            self._process.start(each.run())

    def _look(self) -> None:
        if self._is_looking:
            self.invariants.look()
            self._late_markers.look()
            self.cluster.later(LOOK_S, self._look)

    # The end

    def _await_progress(self) -> None:
        """Every producer gets an answer, and the group commits, to something sent after everything has healed."""
        healed_s = self.loop.time()
        produced = [each.acknowledged_count for each in self._producers]
        committed = sum(each.committed_count for each in self._members)
        transactions = self._transactions
        ended = transactions.committed_counts() if transactions is not None else {}

        def waiting_for() -> list[str]:
            waiting = self.cluster.not_serving()
            # One batch may have been on its way before.
            waiting += [
                now.name
                for now, before in zip(self._producers, produced, strict=True)
                if now.acknowledged_count < before + 2
            ]
            if self._members and sum(each.committed_count for each in self._members) == committed:
                waiting.append(GROUP_ID)
            if transactions is not None:
                now_ended = transactions.committed_counts()
                waiting += [name for name, count in ended.items() if now_ended[name] == count]
            return waiting

        self._await(waiting_for, PROGRESS_S_MAX)
        self.outcome.recovered_s = self.loop.time() - healed_s
        for producer in self._producers:
            producer.is_stopping = True
        if transactions is not None:
            transactions.stop_producers()
            self._await(transactions.unfinished, PROGRESS_S_MAX)
        if self._queues is not None:
            self._queues.finish()
            self._await(self._queues.unfinished, QUEUES_S_MAX)

    def _judge(self) -> None:
        """Reads every log and holds it to what is known."""
        self.loop.run_until(self.loop.time() + 2.0)  # the last answers
        self._is_looking = False
        self.invariants.look()
        for consumer in self._consumers:
            consumer.is_stopping = True
        for member in self._members:
            member.is_stopping = True
        if self._transactions is not None:
            self.loop.run(self._process, self._transactions.judge(), JUDGEMENT_S_MAX)
        if self._queues is not None:
            self.loop.run(self._process, self._queues.judge(), JUDGEMENT_S_MAX)
        logs = {}
        for partition in self._partitions if self._loads.has_plain_traffic else ():
            reader = Consumer(self._client(), self.history, partition)
            logs[partition] = self.loop.run(self._process, _read(reader), PROGRESS_S_MAX)
        for anomaly in self.history.check(logs, Fault.POWER_LOSS):
            self._problem(str(anomaly))

    def _problem(self, what: str) -> None:
        self.outcome.problems.append(what)


async def _read(reader: Consumer) -> ObservedLog:
    while True:
        try:
            return await reader.read_log()
        except Unanswered:
            await reader.client.back_off()


class _Tracebacks(logging.Handler):
    """What brokers log with a traceback is a mistake of theirs, whatever became of it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)[-TRACEBACK_ENTRIES:])
            self._problems.append(f"{record.getMessage()}: {trace}")


@contextmanager
def _quiet(problems: list[str]) -> Iterator[None]:
    logger, handler = logging.getLogger("flowstone"), _Tracebacks(problems)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


def simulate(
    seed: int, faults: Sequence[str] | None = None, loads: Loads | None = None, *, ends_early: bool = False
) -> Outcome:
    """`faults` names what may happen, everything by default; `ends_early` with the first thing that is wrong."""
    loads = loads or ALL_LOADS[seed % len(ALL_LOADS)]
    if faults is None:
        faults = (*EVERYTHING, *WITH_TRANSACTIONS) if loads.has_transactions else EVERYTHING
    gc.disable()  # a collection in the middle would run what killed processes left behind
    gc.freeze()
    try:
        return _simulate(seed, faults, loads, ends_early=ends_early)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that a kill came before
            for _ in range(COLLECTIONS):
                gc.collect()
        gc.unfreeze()
        gc.enable()


def _simulate(seed: int, faults: Sequence[str], loads: Loads, *, ends_early: bool) -> Outcome:
    # Logs stay small here: they find space early, and little of it.
    with chance_from(seed), patch.multiple(preallocation, **SPACE):
        simulation = Simulation(seed, faults, loads, ends_early=ends_early)
        with _quiet(simulation.outcome.problems), simulation.invariants.watching():
            return simulation.run()
