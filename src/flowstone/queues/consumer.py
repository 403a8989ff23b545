"""The share consumer behind a queue: its thread, its membership, its sessions, and the tasks that it holds.

Everything runs in one thread with an event loop; `settle`, `delay` and `extend` may be called from any thread. The
number of tasks that are waiting or in work is limited by `in_flight`: so many records at most are locked here, besides
those that are to be retried later, of which there are at most `DELAYED_MAX`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from flowstone.client.connection import Address
from flowstone.client.errors import ClientError, Retriable, UnknownTopic
from flowstone.ports.clock import SystemClock
from flowstone.queues import group_settings
from flowstone.queues.connections import Connections, TopicLeaders
from flowstone.queues.handoff import Handoff
from flowstone.queues.held_tasks import Place
from flowstone.queues.leader_session import LeaderSession
from flowstone.queues.membership import Membership
from flowstone.queues.options import QueueOptions
from flowstone.queues.task import Outcome, Task
from flowstone.wire.record_batch import Record

logger = logging.getLogger(__name__)
monotonic = SystemClock.monotonic
sleep = SystemClock().sleep

DELAYED_MAX = 1_000
"""Tasks that are held for a later attempt. Further ones are released at once."""

LEADERS_REFRESH_S = 60.0
LEADERS_RETRY_S = 0.2
UNKNOWN_TOPIC_S_MAX = 2.0
FINISH_TIMEOUT_S = 10.0
LOG_INTERVAL_S = 10.0


class Consumer:
    def __init__(self, options: QueueOptions) -> None:
        self.options = options
        self.raise_errors, self.hold_max_s = options.raise_errors, options.hold_max_s
        self.handoff = Handoff()
        self.lost_count = 0
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=f"queue-{options.topic}", daemon=True)
        self._connections = Connections(options.bootstrap, options.client_id, options.security)
        self._membership = Membership(self._connections, options.group, options.topic, self._assign)
        self._sessions: dict[Address, LeaderSession] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._assigned: frozenset[Place] = frozenset()
        self._topic: TopicLeaders | None = None
        self._active: dict[Task, tuple[LeaderSession, Place]] = {}  # waiting or in work
        self._delayed: dict[Task, asyncio.TimerHandle] = {}
        self._reserved = 0
        self._logged_s = 0.0

    # From any thread

    @property
    def is_assigned(self) -> bool:
        """Return whether the group has assigned partitions to this consumer."""
        return bool(self._assigned)

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def is_held(self, task: Task) -> bool:
        """Return whether the task is still locked for this process, as far as is known."""
        return task in self._active

    def settle(self, task: Task, outcome: Outcome) -> None:
        self._call(self._settle, task, outcome)

    def delay(self, task: Task, after_s: float) -> None:
        self._call(self._delay, task, after_s)

    def extend(self, task: Task) -> None:
        self._call(self._extend, task)

    def close(self, grace_s: float) -> None:
        """Stop fetching, release tasks whose bodies have not started, and wait `grace_s` at most for the others."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self._call(self._begin_stop, grace_s)
        self._thread.join(grace_s + FINISH_TIMEOUT_S)

    def _call(self, call: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the broker has released everything
            self._loop.call_soon_threadsafe(call, *arguments)

    # The thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        error: BaseException | None = None
        try:
            self._main = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._main)
        except asyncio.CancelledError:
            error = None
        except BaseException as failure:
            error = failure
        self.handoff.close(error)
        self._connections.close()
        self._loop.close()

    async def _serve(self) -> None:
        self._leaders_due, self._stopping = asyncio.Event(), asyncio.Event()
        try:
            await self._find_topic()
            if self.options.begin is not None:
                await group_settings.begin_at(self._connections, self.options.group, self.options.begin)
            self._spawn(self._membership.run())
            self._spawn(self._follow_leaders())
            stopping = asyncio.ensure_future(self._stopping.wait())
            while not stopping.done():
                await asyncio.wait([stopping, *self._running], return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in self._running if each.done()]:
                    self._running.discard(task)
                    task.result()  # an error ends the consumer
        except BaseException as error:
            self._release(self.handoff.close(error))
            raise
        finally:
            await self._finish()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        return task

    async def _finish(self) -> None:
        self._release(self.handoff.close())
        for timer in self._delayed.values():
            timer.cancel()
        sessions = [task for task in self._running if task.get_name() == LeaderSession.__name__]
        for session in self._sessions.values():
            session.stop()
        for task in self._running - set(sessions):
            task.cancel()
        if sessions:
            await asyncio.wait(sessions, timeout=FINISH_TIMEOUT_S / 2)
        await self._membership.leave()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _begin_stop(self, grace_s: float) -> None:
        self._release(self.handoff.close())
        for task in [each for each in self._active if not each.is_started]:
            self._settle(task, Outcome.RELEASE)
        ends_s = monotonic() + grace_s

        def stop_when_idle() -> None:
            if not any(task.is_started for task in self._active) or monotonic() >= ends_s:
                self._stopping.set()
            else:
                self._loop.call_later(0.01, stop_when_idle)

        stop_when_idle()

    def _release(self, tasks: list[Task]) -> None:
        for task in tasks:
            self._settle(task, Outcome.RELEASE)

    # Leaders

    async def _find_topic(self) -> None:
        begun_s = monotonic()
        while True:
            try:
                self._topic = await self._connections.leaders(self.options.topic)
                return
            except Retriable as error:
                limit_s = UNKNOWN_TOPIC_S_MAX if isinstance(error, UnknownTopic) else self.options.connect_s
                if monotonic() - begun_s > limit_s:
                    raise
            await sleep(LEADERS_RETRY_S)

    async def _follow_leaders(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEADERS_REFRESH_S):
                    await self._leaders_due.wait()
            self._leaders_due.clear()
            try:
                self._topic = await self._connections.leaders(self.options.topic)
                self._arrange()
            except ClientError as error:
                logger.info("queue %s: its leaders are unknown: %s", self.options.topic, error)
                self._leaders_due.set()
            await sleep(LEADERS_RETRY_S)

    def leaders_changed(self) -> None:
        self._leaders_due.set()

    def _assign(self, places: frozenset[Place]) -> None:
        self._assigned = places
        assert self._topic is not None
        known = {(self._topic.topic_id, index) for index in range(len(self._topic.leaders))}
        if not places <= known:
            self._leaders_due.set()
        self._arrange()

    def _arrange(self) -> None:
        """Assign to each leader's session the assigned partitions that it leads."""
        assert self._topic is not None
        by_leader: dict[Address, set[Place]] = {}
        for place in self._assigned:
            topic_id, index = place
            if topic_id != self._topic.topic_id or index >= len(self._topic.leaders):
                continue
            leader = self._topic.leaders[index]
            if leader is None:
                self._leaders_due.set()
            else:
                by_leader.setdefault(leader, set()).add(place)
        for address in by_leader:
            if address not in self._sessions:
                session = LeaderSession(
                    self, self._connections, address, self.options.group, self._membership.member_id
                )
                self._sessions[address] = session
                self._spawn(session.run()).set_name(LeaderSession.__name__)
        for address, session in self._sessions.items():
            session.want(frozenset(by_leader.get(address, ())))

    # What sessions need

    @property
    def is_idle(self) -> bool:
        return not self._active

    def reserve(self) -> int:
        """Return a session's share of the free places, once half of them are free or nothing is waiting for work."""
        capacity = self.options.in_flight
        free = capacity - len(self._active) - self._reserved
        if free <= 0 or self.handoff.is_closed or (free * 2 < capacity and len(self.handoff)):
            return 0
        fetching = sum(session.wants_records for session in self._sessions.values())
        count = max(free // max(fetching, 1), 1)
        self._reserved += count
        return count

    def unreserve(self, count: int) -> None:
        self._reserved -= count
        self._wake()

    def new_task(self, session: LeaderSession, place: Place, record: Record, attempt: int) -> Task:
        task = Task(
            self,
            self.options.topic,
            place[1],
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            record.headers,
            attempt,
        )
        self._active[task] = session, place
        return task

    def deliver(self, tasks: list[Task]) -> None:
        if self.handoff.is_closed:
            self._release(tasks)
        else:
            self.handoff.put(tasks)

    def lost(self, tasks: list[Task], reason: str) -> None:
        """Record that these tasks are locked for this process no longer: the broker delivers them again."""
        for task in tasks:
            self._active.pop(task, None)
            timer = self._delayed.pop(task, None)
            if timer is not None:
                timer.cancel()
        self.lost_count += len(tasks)
        if tasks and monotonic() - self._logged_s > LOG_INTERVAL_S:
            self._logged_s = monotonic()
            logger.warning(
                "queue %s: the locks of %d tasks, %r first, are lost, and they are delivered again: %s",
                self.options.topic, len(tasks), tasks[0], reason,
            )  # fmt: skip
        self._wake()

    # Tasks

    def _settle(self, task: Task, outcome: Outcome) -> None:
        found = self._active.pop(task, None)
        if found is not None:
            session, place = found
            session.settle(place, task.offset, outcome)
            self._wake()

    def _delay(self, task: Task, after_s: float) -> None:
        if len(self._delayed) >= DELAYED_MAX or self.handoff.is_closed:
            self._settle(task, Outcome.RELEASE)
            return
        found = self._active.pop(task, None)
        if found is None:
            return
        session, place = found

        def release() -> None:
            self._delayed.pop(task, None)
            session.settle(place, task.offset, Outcome.RELEASE)

        session.extend(place, task.offset, after_s)
        self._delayed[task] = self._loop.call_later(after_s, release)
        self._wake()

    def _extend(self, task: Task) -> None:
        found = self._active.get(task)
        if found is not None:
            session, place = found
            session.extend(place, task.offset)

    def _wake(self) -> None:
        for session in self._sessions.values():
            session.wake()
