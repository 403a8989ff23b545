"""The runtime of one state machine over a partition of an internal topic: loading, calls, appends, replies.

The rules, the same for every coordinator (D7):

- A call of the state machine returns records and replies. The records are appended, in order, and replayed before the
  next call; those that can wait are appended a little later, together with other shards' (`append_rounds`). No reply,
  not even to a read, is sent before everything the state machine had seen is committed.
- The same holds for tasks: `Host.perform` gets them in order, once everything is committed. It reports back through
  `execute`. Tasks of a state machine that was discarded meanwhile are dropped.
- Records of a transaction are appended in a batch of their own, as are markers; neither waits for a round. The
  runtime asks the log first whether their producer is fenced: then only that request is refused.
- There is no undo. When an append or a commit fails the state machine is discarded, waiting clients get an error that
  makes them look up the coordinator again, and the log is replayed into a new state machine.
- Loading is the same `replay`, in steps that do not hold the event loop for long; meanwhile clients get
  COORDINATOR_LOAD_IN_PROGRESS. A failed load is retried; one that fails because of a bug only FAULTY_LOADS_MAX times.
- On closing no more requests are accepted, but requests whose records are in the log are answered once they are
  committed.

Knows nothing of groups, sockets or files. Runs on the event loop. Its time is steady, wall clock at the start plus
monotonic time since: a wall clock that jumps expires no session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from flowstone.coordinator.append_rounds import AppendRounds
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import RecordCodec
from flowstone.coordinator.replay_reports import ReplayReports
from flowstone.coordinator.shard_log import ProducerFenced, ReplayedState, ShardLog
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.coordinator.tick_queue import TickQueue
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import Clock, Timer
from flowstone.promise import Promise

logger = logging.getLogger(__name__)

# The pause before a log that refuses appends (a full disk) is replayed again.
RELOAD_DELAY_S = 1.0
# Loads that fail because of a bug, which would most likely fail again: each waits twice as long as the one before.
FAULTY_LOADS_MAX = 6

# The errors that clients get when a log fails, as in Kafka; any other error is a bug.
_CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
}


class StateMachine(ReplayedState, Protocol):
    """The methods of a state machine that the runtime calls itself; requests call others, through
    `HostedShard.request`.
    """

    def loaded(self, now_ms: int) -> Effects[Any]:
        """Return the effects of the end of loading: the whole log has been replayed."""
        ...

    def tick(self, now_ms: int) -> Effects[Any]: ...

    def next_deadline(self) -> int | None: ...

    def close(self) -> None:
        """Release its share of the limits that it has in common with others; it is not called afterwards."""
        ...


Machine = TypeVar("Machine", bound=StateMachine)
Seen = TypeVar("Seen")
Call = Callable[[Machine, int], Effects[Any]]
Token = Promise[Any]


def refuse_task(shard: HostedShard[Any], task: Any) -> None:
    """Raise AssertionError: this coordinator's state machine must not return tasks."""
    raise AssertionError(f"no Host.perform for {task!r}")


@dataclass(frozen=True, slots=True)
class Host(Generic[Machine]):
    """The parts that the shards of one coordinator share."""

    clock: Clock
    codec: RecordCodec
    # Creates an empty state machine for a leader epoch of its partition.
    new_machine: Callable[[int], Machine]
    # One shard loads at a time: each holds the event loop for a few milliseconds per step.
    load_lock: asyncio.Lock
    rounds: AppendRounds
    reports: ReplayReports
    skipped: SkippedRecords
    ticks: TickQueue
    # Begins a task of a shard's state machine, and returns at once.
    perform: Callable[[HostedShard[Machine], Any], None] = refuse_task


class HostedShard(Generic[Machine]):
    def __init__(self, name: str, log: InternalLog, host: Host[Machine], leader_epoch: int) -> None:
        self._name, self._host, self._clock = name, host, host.clock
        self.leader_epoch = leader_epoch
        self._log = ShardLog(name, log, host.codec, host.skipped)
        self._when_committed = log.when_committed
        self._epoch_ms = host.clock.time_ms() - host.clock.monotonic() * 1000
        # None while the shard loads, cannot be loaded, or is closed; clients then get the error below.
        self._machine: Machine | None = None
        self._unavailable = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # Requests that the state machine has not answered, and those whose replies wait for a commit.
        self._unanswered: set[Token] = set()
        self._uncommitted: set[Token] = set()
        # Records that were replayed but not appended yet; and the replies and tasks that depend on them.
        self._unappended: list[Any] = []
        self._held_back: list[tuple[Token, Any]] = []
        self._held_tasks: list[Any] = []
        self._is_in_round = False
        # Calls of `execute` that arrived while there was no state machine, or while its log refused appends.
        self._calls_after_load: list[Call[Machine]] = []
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._faulty_loads = 0
        self.loading: asyncio.Future[None]  # the load under way, or the last one
        self._begin_load()

    @property
    def machine(self) -> Machine | None:
        """The state machine, to be read only; None while the shard loads, cannot be loaded, or is closed."""
        return self._machine

    def request(self, call: Callable[[Machine, int, Token], Effects[Any]], token: Token | None = None) -> Token:
        """Pass a request to the state machine; return the promise of its response, `token` if given.

        The promise raises ApiError if the request fails.
        """
        token = Promise() if token is None else token
        machine = self._machine
        if machine is None:
            token.set_exception(ApiError(self._unavailable))
            return token
        self._unanswered.add(token)
        self._run(machine, call, token)
        return token

    def look(self, look: Callable[[Machine], Seen]) -> Seen | None:
        """Return what `look` finds in the state machine, which it does not change; None if that must wait.

        It must wait while there is no state machine, or while anything that it has seen is not committed.
        """
        machine = self._machine
        if machine is None or self._unappended or not self._log.is_committed:
            return None
        return look(machine)

    def execute(self, call: Call[Machine]) -> None:
        """Call the state machine for an event without a requester: now, or once it is loaded and can append."""
        if self._machine is None or not self._run(self._machine, call):
            self._calls_after_load.append(call)

    def close(self, code: ErrorCode) -> None:
        """Stop serving: waiting requests get `code`, but those whose records are in the log wait for the commit."""
        if self._unappended:
            self._append_last(code)
        self.loading.cancel()
        self._calls_after_load.clear()
        self._host.reports.closed(self._name)
        self._drop_machine(code)
        _refuse(self._unanswered, code)

    # Calling

    def _now_ms(self) -> int:
        return int(self._epoch_ms + self._clock.monotonic() * 1000)

    def _run(self, machine: Machine, call: Callable[..., Effects[Any]], *asker: Token) -> bool:
        """Call the state machine and append its records; return False if the log refused them.

        `asker` is the token of the request, if there is one.
        """
        try:
            now_ms = self._now_ms()
            effects = call(machine, now_ms, *asker)
            if effects.producer is not None:
                self._append_in_transaction(machine, effects, effects.producer, now_ms)
            elif effects.records:
                self._unappended += effects.records
                if not effects.can_wait:
                    self._append(now_ms)
                machine.replay(effects.records)
        except ProducerFenced as error:
            self._refuse_fenced(effects, error)
            return True
        except Exception as error:
            self._call_failed(error)
            return not isinstance(error, ApiError)
        if effects.replies:
            for token, _ in effects.replies:
                self._unanswered.discard(token)
                self._uncommitted.add(token)
            self._held_back += effects.replies
        if effects.tasks:
            self._held_tasks += effects.tasks
        self._schedule(machine)
        if not self._unappended:
            self._release_when_committed(machine)
        elif not self._is_in_round:
            self._is_in_round = True
            self._host.rounds.join(self, self._append_in_round)
        return True

    def _append(self, now_ms: int) -> None:
        records, self._unappended = self._unappended, []
        self._log.append(records, now_ms)
        self._host.reports.appended(self._name)

    def _append_in_transaction(
        self, machine: Machine, effects: Effects[Any], producer: TransactionalProducer, now_ms: int
    ) -> None:
        """Append and replay records of a producer's transaction, or its end, after everything that came before.

        Raises ProducerFenced, and appends nothing, if the log has fenced the producer.
        """
        records, marker = effects.records, effects.marker
        batches = self._log.transaction_batches(producer, records, marker, now_ms, effects.transaction_version)
        if self._unappended:
            self._append(now_ms)
        self._log.append_batches(batches)
        if records:
            machine.replay(records, producer)
        if marker is not None:
            machine.replay_marker(producer, marker)
        self._host.reports.appended(self._name)

    def _refuse_fenced(self, effects: Effects[Any], error: ProducerFenced) -> None:
        """Refuse the request of a fenced producer with the log's error code; the state machine continues."""
        for token, _ in effects.replies:
            self._unanswered.discard(token)
            if not token.is_done:
                token.set_exception(error)

    def _append_in_round(self) -> None:
        self._is_in_round = False
        machine = self._machine
        if machine is None or not self._unappended:
            return  # the machine was discarded, or an append that could not wait included these records
        try:
            self._append(self._now_ms())
        except Exception as error:
            self._call_failed(error)
        else:
            self._release_when_committed(machine)

    def _append_last(self, code: ErrorCode) -> None:
        """Append the records that wait for their round or, if this broker no longer leads the log, drop them."""
        assert self._machine is not None
        try:
            self._append(self._now_ms())
        except ApiError:
            refused = {token for token, _ in self._held_back}
            self._uncommitted -= refused
            _refuse(refused, code)
        else:
            self._release_when_committed(self._machine)

    def _call_failed(self, error: Exception) -> None:
        if isinstance(error, ApiError):
            self._failed(error.code, str(error))
        else:
            # A bug, half-way through a call: the state is invalid, whatever the call was.
            logger.exception("%s: the state machine failed", self._name)
            self._failed(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))

    def _release_when_committed(self, machine: Machine) -> None:
        if self._held_back or self._held_tasks:
            replies, self._held_back = self._held_back, []
            tasks, self._held_tasks = self._held_tasks, []
            self._when_committed(partial(self._release, machine, replies, tasks))

    def _release(
        self, machine: Machine, replies: Sequence[tuple[Token, Any]], tasks: Sequence[Any], code: ErrorCode
    ) -> None:
        if code is not ErrorCode.NONE and machine is self._machine:
            self._failed(code, f"a commit failed with {code.name}")
        for token, response in replies:
            self._uncommitted.discard(token)
            if token.is_done:  # the client may be gone; its request was carried out all the same
                continue
            if code is ErrorCode.NONE:
                token.set_result(response)
            else:
                token.set_exception(ApiError(_told(code)))
        if tasks and code is ErrorCode.NONE:
            self._perform(machine, tasks)

    def _perform(self, machine: Machine, tasks: Sequence[Any]) -> None:
        for task in tasks:
            if machine is not self._machine:
                return  # the machine was discarded, maybe by the task before
            try:
                self._host.perform(self, task)
            except Exception as error:
                self._call_failed(error)

    # Time

    def _schedule(self, machine: Machine) -> None:
        """Schedule a call of the state machine at its deadline, or earlier: most deadlines only ever move to later."""
        deadline_ms = machine.next_deadline()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        self._cancel_timer()
        self._timer_ms = deadline_ms
        self._timer = self._clock.call_later(max(deadline_ms - self._now_ms(), 0) / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self._host.ticks.run(self._tick)

    def _tick(self) -> None:
        if self._machine is not None:
            self._run(self._machine, lambda machine, now_ms: machine.tick(now_ms))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Loading and failing

    def _begin_load(self) -> None:
        self._timer = None
        self.loading = asyncio.ensure_future(self._load())

    async def _load(self) -> None:
        machine = self._host.new_machine(self.leader_epoch)
        is_loaded = False
        try:
            await self._log.wait_committed()
            async with self._host.load_lock:
                await self._log.load(machine)
            is_loaded = True
        except (ApiError, StorageFault) as error:
            code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
            self._failed(code, str(error), is_loaded=False)
            return
        except Exception as error:
            logger.exception("%s: loading failed", self._name)
            self._faulty_loads += 1
            self._failed(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error), is_loaded=False)
            return
        finally:
            if not is_loaded:  # it failed, or was cancelled
                machine.close()
        self._machine, self._faulty_loads = machine, 0
        self._run(machine, lambda machine, now_ms: machine.loaded(now_ms))
        calls, self._calls_after_load = self._calls_after_load, []
        for call in calls:
            self.execute(call)

    def _failed(self, code: ErrorCode, reason: str, *, is_loaded: bool = True) -> None:
        self._host.reports.failed(self._name, reason)
        told = _told(code)
        # After a failed load COORDINATOR_LOAD_IN_PROGRESS would be misleading.
        self._drop_machine(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_loaded else told)
        _refuse(self._unanswered, told)
        _refuse(self._uncommitted, told)
        if self._faulty_loads < FAULTY_LOADS_MAX:
            delay_s = RELOAD_DELAY_S * 2 ** max(self._faulty_loads - 1, 0)
            self._timer = self._clock.call_later(delay_s, self._begin_load)
        else:
            logger.error(
                "%s cannot be loaded, and will not be retried until the broker is restarted: %s", self._name, reason
            )

    def _drop_machine(self, unavailable: ErrorCode) -> None:
        self._cancel_timer()
        if self._machine is not None:
            self._machine.close()
        self._machine, self._unavailable = None, unavailable
        self._unappended, self._held_back, self._held_tasks = [], [], []


def _told(code: ErrorCode) -> ErrorCode:
    return _CLIENT_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def _refuse(tokens: set[Token], code: ErrorCode) -> None:
    """Reject all tokens with the error code, and empty the set."""
    for token in tokens:
        if not token.is_done:
            token.set_exception(ApiError(code))
    tokens.clear()
