"""Random lives of transactions, and what must hold in all of them.

T1  A transaction has one outcome, in the log of the coordinator and in all partitions that it wrote to.
T2  The outcome is the one that the producer was told. What nobody asked to commit is not committed.
T3  Producer epochs never fall; a new producer id was never used before; no client is given the last epoch.
T4  A producer that another has replaced does not succeed in anything; one that nobody has replaced is known.
T5  A request ends, or adds to, the transaction it was meant for and no other.
T6  Once everything has arrived, no transaction is open longer than its timeout, and each decided one is complete.

Requests and answers are lost, repeated and reordered; markers arrive late, twice, or from a coordinator that is gone;
the coordinator crashes at any time, and keeps of what was not committed any part. A failure names its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from random import Random
from typing import Any

from flowstone.coordinator.transactions.config import MARKERS_RETRY_MS, TransactionConfig
from flowstone.coordinator.transactions.messages import V1, V2, SendMarkers
from flowstone.coordinator.transactions.record_format import encode
from flowstone.coordinator.transactions.records import (
    LAST_CLIENT_EPOCH,
    TransactionRecord,
    TransactionState,
    TransactionStored,
)
from flowstone.coordinator.transactions.state import TransactionEffects
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.harness import Coordinator
from tests.unit.coordinator.transactions.simulated_partition import SimulatedPartition, Tag
from tests.unit.coordinator.transactions.simulated_producer import TIMEOUTS_MS, Sent, SimulatedProducer

STEPS = 2_000
ALWAYS = (True,)  # an action that needs nothing to be on its way
PRODUCERS_MAX = 3
TRANSACTIONAL_IDS = ("x", "y")
FIRST_PRODUCER_ID = 1_000_000  # of those that the log begins with; the coordinator gives out small ones
_STATES = TransactionState
_NEXT_STATES = {
    _STATES.EMPTY: (_STATES.EMPTY, _STATES.ONGOING, _STATES.COMPLETE_ABORT),
    _STATES.ONGOING: (_STATES.ONGOING, _STATES.PREPARE_COMMIT, _STATES.PREPARE_ABORT),
    _STATES.PREPARE_COMMIT: (_STATES.COMPLETE_COMMIT,),
    _STATES.PREPARE_ABORT: (_STATES.COMPLETE_ABORT,),
    _STATES.COMPLETE_COMMIT: (_STATES.EMPTY, _STATES.ONGOING, _STATES.COMPLETE_ABORT),
    _STATES.COMPLETE_ABORT: (_STATES.EMPTY, _STATES.ONGOING, _STATES.COMPLETE_ABORT),
}


Owner = tuple[SimulatedProducer, tuple[int, int]]
"""A producer, and the id and epoch that it was given."""


@dataclass(eq=False)
class Markers:
    """A task that somebody does: the markers of one coordinator, each on its way until its answer has arrived."""

    task: SendMarkers
    unanswered: set[TopicPartition]


@dataclass(frozen=True)
class Happened:
    """What the log's end stands for, as far as only clients know it: cut off where the log is."""

    log_end: int
    owner: tuple[str, Owner] | None = None  # a transactional id, and who was made its producer
    begun: tuple[str, Tag] | None = None  # a transactional id, and which transaction has begun
    decided: tuple[Tag, bool] | None = None  # a transaction, and whether it was committed


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.partitions = {TopicPartition("t", number): SimulatedPartition() for number in range(3)}
        self.producers: list[SimulatedProducer] = []
        self.requests: list[Sent] = []
        self.answers: list[tuple[Sent, Any]] = []
        self.markers: list[Markers] = []
        self.marker_answers: list[tuple[SendMarkers, TopicPartition, bool]] = []
        self.late_marker_answers: list[tuple[SendMarkers, TopicPartition, bool]] = []
        self.coordinator = Coordinator(TransactionConfig(), self._replied, self._told)
        self.coordinator.commits_at_once = False
        self._happened: list[Happened] = []
        self._seen_producer_ids: set[int] = set()
        self._begin_log()

    def _begin_log(self) -> None:
        """Some transactional ids have a history, and nearly no epochs left."""
        for number, transactional_id in enumerate(TRANSACTIONAL_IDS):
            epochs_left = self.random.choice([None, 0, 1, 1, 2, 3])
            if epochs_left is not None:
                epoch = LAST_CLIENT_EPOCH - epochs_left
                now_ms, producer_id = self.coordinator.now_ms, FIRST_PRODUCER_ID + number
                record = TransactionStored(transactional_id, producer_id, epoch, 1, TransactionState.EMPTY, now_ms)
                self.coordinator.log.append(encode(record))
                self._seen_producer_ids.add(producer_id)
        self.coordinator.reload()
        self._stored = self._load()

    def run(self) -> None:
        unrest = self.random.choice([0.1, 0.5, 1])
        actions: list[tuple[float, Callable[[], None], Sized]] = [
            (200, self._deliver_request, self.requests),
            (200, self._deliver_answer, self.answers),
            (200, self._deliver_marker, self.markers),
            (200, self._deliver_marker_answer, self.marker_answers),
            (30, self._deliver_late_marker_answer, self.late_marker_answers),
            (100, self._step_producer, ALWAYS),
            (100, self._commit, ALWAYS),
            (10 * unrest, self._pass_time, ALWAYS),
            (5 * unrest, self._crash, ALWAYS),
            (3 * unrest, self._add_producer, ALWAYS),
            (2 * unrest, self._lose_producer, ALWAYS),
            (3 * unrest, self._change_version, ALWAYS),
            (3 * unrest, self._change_producer_ids, ALWAYS),
        ]
        # What one world does at once, another puts off: markers, answers, commits.
        actions = [(weight * self.random.choice([0.1, 1, 1]), action, pool) for weight, action, pool in actions]
        for _ in range(STEPS):
            possible = [(weight, action) for weight, action, pool in actions if pool]
            weights, functions = zip(*possible, strict=True)
            (action,) = self.random.choices(functions, weights)
            action()
        self._come_to_rest()
        self._check_outcomes()

    # What happens

    def _add_producer(self) -> None:
        if len(self._alive()) < PRODUCERS_MAX:
            name = f"p{len(self.producers)}"
            transactional_id, version = self.random.choice(TRANSACTIONAL_IDS), self.random.choice([V1, V2, V2])
            producer = SimulatedProducer(
                name, transactional_id, version, self.random, self.partitions, self.requests.append
            )
            self.producers.append(producer)

    def _lose_producer(self) -> None:
        if alive := self._alive():
            self.random.choice(alive).is_dead = True

    def _alive(self) -> list[SimulatedProducer]:
        return [each for each in self.producers if not each.is_dead]

    def _step_producer(self) -> None:
        if not (alive := self._alive()):
            self._add_producer()
        self.random.choice(alive or self.producers[-1:]).step()

    def _deliver_request(self) -> None:
        if not self.requests:
            return
        sent = self.requests[self.random.randrange(len(self.requests))]
        is_late = sent.producer.waits_for is not sent or sent.producer.is_dead
        if sent.producer.version == V1 and is_late:
            self.requests.remove(sent)
            return
        if self.random.random() < 0.8:  # or it comes once more
            self.requests.remove(sent)
        if self.random.random() < 0.9:
            self._call(sent)

    def _call(self, sent: Sent) -> None:
        method = getattr(self.coordinator.shard, sent.method)
        effects = method(self.coordinator.now_ms, sent, sent.request)
        self._check_answer(sent, effects)
        self._take(effects, sent)

    def _deliver_answer(self) -> None:
        if self.answers:
            sent, response = self.answers.pop(self.random.randrange(len(self.answers)))
            if self.random.random() < 0.8:
                sent.producer.answered(sent, response)

    def _deliver_marker(self) -> None:
        if not self.markers:
            return
        markers = self.random.choice(self.markers)
        partition = self.random.choice(sorted(markers.unanswered))
        is_taken = self.partitions[partition].mark(markers.task)
        self.marker_answers.append((markers.task, partition, is_taken))
        # A V1 marker that came twice within one coordinator's life would end the next transaction.
        if is_taken and markers.task.transaction_version >= V2 and self.random.random() < 0.2:
            return  # it is sent again
        markers.unanswered.discard(partition)
        if not is_taken or not markers.unanswered:
            self.markers.remove(markers)

    def _deliver_marker_answer(self) -> None:
        if self.marker_answers:
            answer = self.marker_answers.pop(self.random.randrange(len(self.marker_answers)))
            if self.random.random() < 0.5:
                self.late_marker_answers.append(answer)  # it comes once more, some time
            self._marked(*answer)

    def _deliver_late_marker_answer(self) -> None:
        if self.late_marker_answers:
            self._marked(*self.late_marker_answers.pop(self.random.randrange(len(self.late_marker_answers))))

    def _marked(self, task: SendMarkers, partition: TopicPartition, is_taken: bool) -> None:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        if is_taken:
            self._take(shard.markers_written(now_ms, task, [partition]))
        else:
            self._take(shard.markers_refused(now_ms, task))

    def _commit(self) -> None:
        end = len(self.coordinator.log)
        self.coordinator.commit(self.random.randint(self.coordinator.committed, end))

    def _pass_time(self) -> None:
        self.coordinator.now_ms += self.random.choice([1, 100, 1_000, 10_000])
        self._tick()

    def _tick(self) -> None:
        deadline_ms = self.coordinator.shard.next_deadline()
        if deadline_ms is not None and deadline_ms <= self.coordinator.now_ms:
            self._take(self.coordinator.shard.tick(self.coordinator.now_ms))

    def _crash(self) -> None:
        log_end = self.random.randint(self.coordinator.committed, len(self.coordinator.log))
        self._happened = [each for each in self._happened if each.log_end <= log_end]
        if self.random.random() < 0.7:
            self.coordinator.coordinator_epoch += 1
        else:
            self.markers.clear()  # the same broker goes on, whose sender has one request at a time for a producer
        self.coordinator.reload(log_end)
        self._stored = self._load()
        if self.random.random() < 0.5:  # what takes a broker down takes others with it
            self._lose_producer()

    def _change_version(self) -> None:
        self.coordinator.transaction_version = self.random.choice([0, 1, 2])

    def _change_producer_ids(self) -> None:
        self.coordinator.has_producer_ids = self.random.random() < 0.9

    def _replied(self, sent: Sent, response: Any) -> None:
        self.answers.append((sent, response))

    def _told(self, task: SendMarkers) -> None:
        self.markers.append(Markers(task, set(task.partitions)))

    def _come_to_rest(self) -> None:
        for producer in self.producers:
            producer.is_dead = True
        self.coordinator.has_producer_ids = True
        self.coordinator.commit()
        for _ in range(10):
            self.coordinator.now_ms += max(*TIMEOUTS_MS, MARKERS_RETRY_MS)
            self._tick()
            self.coordinator.commit()
            while self.markers or self.marker_answers:
                self._deliver_marker()
                self._deliver_marker_answer()
                self.coordinator.commit()

    # What must hold

    def _take(self, effects: TransactionEffects, sent: Sent | None = None) -> None:
        for record in effects.records:
            assert isinstance(record, TransactionStored)
            before = self._stored.get(record.transactional_id)
            self._check_record(before, record)
            self._note(before, record, sent)
            self._stored[record.transactional_id] = record
        self.coordinator.take(effects)

    def _check_record(self, before: TransactionStored | None, after: TransactionStored) -> None:
        if before is not None:
            assert after.state in _NEXT_STATES[before.state], f"T1: {before.state.label} to {after.state.label}"
            if after.producer_id == before.producer_id:
                assert after.producer_epoch >= before.producer_epoch, f"T3: the epoch falls to {after.producer_epoch}"
        is_new = before is None or after.producer_id != before.producer_id
        if is_new:
            is_announced = before is not None and before.next_producer_id == after.producer_id
            assert is_announced or after.producer_id not in self._seen_producer_ids, "T3: a producer id is used twice"
        self._seen_producer_ids |= {after.producer_id, after.next_producer_id} - {-1}

    def _note(self, before: TransactionStored | None, after: TransactionStored, sent: Sent | None) -> None:
        log_end = len(self.coordinator.log) + 1
        transactional_id = after.transactional_id
        is_initialized = (
            sent is not None and sent.method == "init_producer_id" and after.state is TransactionState.EMPTY
        )
        if sent is not None and is_initialized and sent.request.producer_id == -1:
            owner = sent.producer, (after.producer_id, after.producer_epoch)
            self._happened.append(Happened(log_end, owner=(transactional_id, owner)))
        was_ongoing = before is not None and before.state is TransactionState.ONGOING
        if sent is not None and after.state is TransactionState.ONGOING and not was_ongoing:
            self._happened.append(Happened(log_end, begun=(transactional_id, sent.tag)))
        if was_ongoing and after.state.is_prepared:
            decided = self._last("begun", transactional_id), after.state.is_commit
            self._happened.append(Happened(log_end, decided=decided))

    def _check_answer(self, sent: Sent, effects: TransactionEffects) -> None:
        ((_, response),) = effects.replies
        transactional_id = sent.request.transactional_id
        before = self._stored.get(transactional_id)
        owner = self._last("owner", transactional_id)
        if response.error_code is ErrorCode.INVALID_PRODUCER_ID_MAPPING and sent.producer.waits_for is sent:
            is_known = owner == (sent.producer, sent.producer.first_pair)
            assert not is_known, f"T4: {sent.producer.name} is not known, and nobody has replaced it"
        if response.error_code is not ErrorCode.NONE:
            return
        if sent.method != "init_producer_id" or sent.request.producer_id != -1:
            is_owner = owner is None or owner[0] is sent.producer
            assert is_owner, f"T4: {sent.producer.name} succeeds after {owner[0].name}"
        if sent.method != "add_partitions":
            assert response.producer_epoch <= LAST_CLIENT_EPOCH, "T3: a client is given the last epoch"
        if before is not None and before.state is TransactionState.ONGOING and sent.method != "init_producer_id":
            begun = self._last("begun", transactional_id)
            assert begun == sent.tag, f"T5: {sent.method} of {sent.tag} meets {begun}"

    def _last(self, what: str, transactional_id: str) -> Any:
        """Return what happened last of this kind, or None."""
        found = (getattr(each, what) for each in reversed(self._happened))
        return next((value for key, value in filter(None, found) if key == transactional_id), None)

    def _load(self) -> dict[str, TransactionStored]:
        records: list[TransactionRecord] = self.coordinator.stored()
        return {each.transactional_id: each for each in records if isinstance(each, TransactionStored)}

    def _check_outcomes(self) -> None:
        for stored in self._load().values():
            is_done = stored.state is TransactionState.EMPTY or stored.state.is_complete
            assert is_done, f"T6: {stored.transactional_id} is still {stored.state.label}"
        heard: dict[Tag, bool] = {}
        asked: set[Tag] = set()
        for producer in self.producers:
            heard |= producer.heard
            asked |= producer.asked_to_commit
        outcomes: dict[Tag, set[bool]] = {}
        for partition in self.partitions.values():
            for writer in partition.writers.values():
                assert not writer.open, f"T6: {writer.open[0]} is open in a partition"
            for tag, found in partition.outcomes.items():
                outcomes.setdefault(tag, set()).update(found)
        decided = dict(each.decided for each in self._happened if each.decided is not None)
        for tag, found in outcomes.items():
            assert found == {decided[tag]}, f"T1: {tag} is decided as {decided[tag]} and marked as {found}"
            assert tag not in heard or found == {heard[tag]}, f"T2: {tag} was told otherwise"
            assert tag in asked or found == {False}, f"T2: nobody asked to commit {tag}"
