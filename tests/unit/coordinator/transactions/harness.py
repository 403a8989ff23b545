"""A transaction shard with the runtime's rules around it and nothing else: a list for the log, a number for the clock.

Records are encoded, appended and replayed right after the call that gave them. Replies and tasks are held until
everything appended before them is committed. A crash keeps the log up to some point at or after what was committed, and
loses what was held.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.coordinator.transactions.config import TransactionConfig
from flowstone.coordinator.transactions.messages import SendMarkers
from flowstone.coordinator.transactions.record_format import decode, encode
from flowstone.coordinator.transactions.records import TransactionRecord
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.coordinator.transactions.state import TransactionEffects
from flowstone.memory_budget import MemoryBudget

MEMORY_BYTES = 256 << 20
START_MS = 1_700_000_000_000


class Coordinator:
    def __init__(
        self,
        config: TransactionConfig,
        on_reply: Callable[[Any, Any], None],
        on_task: Callable[[SendMarkers], None],
    ) -> None:
        self.config = config
        self.now_ms = START_MS
        self.log: list[CoordinatorRecord] = []
        self.committed = 0
        self.commits_at_once = True
        self.coordinator_epoch = 0
        self.transaction_version = 2
        self.has_producer_ids = True
        self.budget = MemoryBudget(MEMORY_BYTES)
        self._on_reply, self._on_task = on_reply, on_task
        self._held: deque[tuple[int, Callable[[], None]]] = deque()
        self._producer_ids = itertools.count(1)
        self.shard = self._new_shard()
        self.shard.loaded(self.now_ms)

    def take(self, effects: TransactionEffects) -> None:
        keys = [record.transactional_id for record in effects.records]
        assert len(keys) == len(set(keys)), "one record per transactional id and turn"
        self.log.extend(encode(record) for record in effects.records)
        self.shard.replay(effects.records)
        for token, response in effects.replies:
            self._hold(self._on_reply, token, response)
        for task in effects.tasks:
            self._hold(self._on_task, task)
        if self.commits_at_once:
            self.commit()

    def _hold(self, release: Callable[..., None], *arguments: Any) -> None:
        self._held.append((len(self.log), lambda: release(*arguments)))

    def commit(self, log_end: int | None = None) -> None:
        self.committed = len(self.log) if log_end is None else log_end
        while self._held and self._held[0][0] <= self.committed:
            self._held.popleft()[1]()

    def advance(self, duration_ms: int) -> None:
        """Let time pass, with a tick at every deadline on the way."""
        end_ms = self.now_ms + duration_ms
        while (deadline_ms := self.shard.next_deadline()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = end_ms

    def reload(self, log_end: int | None = None) -> None:
        """The coordinator is gone, and another one has loaded what the log kept."""
        log_end = len(self.log) if log_end is None else log_end
        assert log_end >= self.committed, "what is committed is not lost"
        del self.log[log_end:]
        self._held.clear()
        self.shard.close()
        self.shard = self._new_shard()
        self.shard.replay(self.stored())
        self.committed = log_end
        self.take(self.shard.loaded(self.now_ms))

    def stored(self) -> list[TransactionRecord]:
        records = [decode(key, value) for key, value in self.log]
        return [record for record in records if record is not None]

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(
            self.config,
            self.coordinator_epoch,
            lambda: next(self._producer_ids) if self.has_producer_ids else None,
            lambda: self.transaction_version,
            self.budget,
        )
