"""ShareShard: the states of all share partitions of one `__share_group_state` partition.

Pure and synchronous, under the duties of every coordinator's runtime (`coordinator.runtime`). A state begins with
`initialize`; the leader of the partition then reads it, and writes changes of it. A snapshot holds the whole state, an
update a change; after `updates_per_snapshot` updates the next write is a snapshot.

Fencing: a leader with an older epoch than the one that read last is refused (FENCED_LEADER_EPOCH), and so is a writer
that knows an older state epoch than the one of the last `initialize` (FENCED_STATE_EPOCH). Within one state epoch the
start offset never moves back, whatever is written.

The topic is not compacted: its start is moved instead. `begin_refresh` begins a
generation; every snapshot belongs to the
generation in which it was written, and `refresh` writes new snapshots of states whose last one is older. When all are
of this generation, everything that was in the log when it began is obsolete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowstone.coordinator.effects import Effects
from flowstone.coordinator.share.config import (
    LETTER_RANGES_MAX,
    SNAPSHOTS_PER_CALL,
    STATE_BATCHES_MAX,
    ShareCoordinatorConfig,
)
from flowstone.coordinator.share.messages import (
    NO_EPOCH,
    InitialState,
    StateRead,
    StateResult,
    StateSummary,
    StateWrite,
)
from flowstone.coordinator.share.records import (
    NO_START_OFFSET,
    STORED_STATES,
    UNCHANGED_START_OFFSET,
    UNKNOWN_COUNT,
    ShareKey,
    ShareRecord,
    ShareSnapshot,
    ShareStateRemoved,
    ShareUpdate,
)
from flowstone.coordinator.share.state import PartitionState
from flowstone.errors import ErrorCode

ShareEffects = Effects[ShareRecord]


class ShareShard:
    def __init__(self, config: ShareCoordinatorConfig) -> None:
        self._config = config
        self._states: dict[ShareKey, PartitionState] = {}
        # What was loaded is of generation 0.
        self._generation = 0

    # Requests

    def initialize(self, now_ms: int, token: Any, request: InitialState) -> ShareEffects:
        """Initialize a share partition's state, or reinitialize it with a state epoch that is not older.

        A repeated request without a start offset, of the same state epoch, changes nothing: the state may be in use.
        """
        before = self._states.get(request.key)
        if before is not None and before.state_epoch > request.state_epoch:
            return _answer(token, StateResult(ErrorCode.FENCED_STATE_EPOCH, _fenced_state(before, request.state_epoch)))
        if before is not None and (before.state_epoch, NO_START_OFFSET) == request[1:]:
            return _answer(token, StateResult())
        snapshot = ShareSnapshot(
            request.key,
            0 if before is None else before.snapshot_epoch + 1,
            request.state_epoch,
            0 if before is None else before.leader_epoch,
            request.start_offset,
            now_ms,
            now_ms,
            delivery_complete_count=UNKNOWN_COUNT if request.start_offset == NO_START_OFFSET else 0,
        )
        return Effects([snapshot], [(token, StateResult())])

    def read(self, now_ms: int, token: Any, key: ShareKey, leader_epoch: int) -> ShareEffects:
        """Return the state to the partition's leader, and note its epoch: leaders of older epochs are fenced then."""
        state = self._states.get(key)
        if state is None:
            return _answer(token, StateRead(ErrorCode.INVALID_REQUEST, _UNINITIALIZED))
        if leader_epoch != NO_EPOCH and leader_epoch < state.leader_epoch:
            return _answer(token, StateRead(ErrorCode.FENCED_LEADER_EPOCH, _fenced_leader(state, leader_epoch)))
        records: list[ShareRecord] = []
        if leader_epoch > state.leader_epoch:
            records.append(ShareUpdate(key, state.snapshot_epoch, leader_epoch))
        delays = tuple(sorted(state.delays.values()))
        epochs, batches, given_up = (state.state_epoch, state.start_offset), tuple(state.batches), tuple(state.given_up)
        found = StateRead(ErrorCode.NONE, None, *epochs, batches, delays, state.letters, given_up)
        return Effects(records, [(token, found)])

    def write(self, now_ms: int, token: Any, request: StateWrite) -> ShareEffects:
        """Change the state for the partition's leader."""
        state = self._states.get(request.key)
        if state is None:
            return _answer(token, StateResult(ErrorCode.INVALID_REQUEST, _UNINITIALIZED))
        refusal = _refusal(state, request)
        if refusal is not None:
            return _answer(token, refusal)
        leader_epoch = max(request.leader_epoch, state.leader_epoch)
        start_offset = request.start_offset
        if start_offset <= state.start_offset:
            start_offset = UNCHANGED_START_OFFSET
        update = ShareUpdate(
            request.key,
            state.snapshot_epoch,
            leader_epoch,
            start_offset,
            request.batches,
            request.delivery_complete_count,
            request.delays,
            request.letters,
            request.given_up,
        )
        record: ShareRecord = update
        if state.update_count >= self._config.updates_per_snapshot:
            record = state.snapshot_with(update, now_ms)
        return Effects([record], [(token, StateResult())], can_wait=True)

    def delete(self, now_ms: int, token: Any, key: ShareKey) -> ShareEffects:
        """Delete a share partition's state; a state that does not exist is no error."""
        records: list[ShareRecord] = [ShareStateRemoved(key)] if key in self._states else []
        return Effects(records, [(token, StateResult())])

    def summarize(self, now_ms: int, token: Any, key: ShareKey) -> ShareEffects:
        """Return where a share partition starts; one without a state has no start offset."""
        state = self._states.get(key)
        if state is None:
            return _answer(token, StateSummary())
        epochs = state.state_epoch, state.leader_epoch
        return _answer(
            token, StateSummary(ErrorCode.NONE, None, *epochs, state.start_offset, state.delivery_complete_count)
        )

    # Pruning

    def begin_refresh(self, now_ms: int, token: Any) -> ShareEffects:
        """Begin a generation, and write the first of its snapshots as `refresh` does."""
        self._generation += 1
        return self.refresh(now_ms, token)

    def refresh(self, now_ms: int, token: Any) -> ShareEffects:
        """Write the next snapshots of this generation; the reply says whether all states have one."""
        old = [state for state in self._states.values() if state.generation < self._generation]
        records: list[ShareRecord] = [state.snapshot(now_ms) for state in old[:SNAPSHOTS_PER_CALL]]
        return Effects(records, [(token, len(old) <= SNAPSHOTS_PER_CALL)])

    # The runtime's

    def replay(self, records: Iterable[ShareRecord], producer: object = None) -> None:
        """Apply stored records in order: those just appended, or some that were read while loading."""
        for record in records:
            if isinstance(record, ShareUpdate):
                state = self._states.get(record.key)
                if state is not None:  # its snapshot may be below the log's start
                    state.update(record)
            elif isinstance(record, ShareSnapshot):
                self._states[record.key] = PartitionState(record, self._generation)
            else:
                self._states.pop(record.key, None)

    def replay_marker(self, producer: object, marker: object) -> None:
        """Ignore an end marker, because nothing is written to this topic in a transaction."""

    def loaded(self, now_ms: int) -> ShareEffects:
        """Return no effects, because loading needs no further work."""
        return Effects()

    def tick(self, now_ms: int) -> ShareEffects:
        return Effects()

    def next_deadline(self) -> int | None:
        return None

    def close(self) -> None:
        """Forget all states: the shard is discarded, or another broker hosts it now."""
        self._states.clear()

    def __len__(self) -> int:
        return len(self._states)

    def snapshots(self) -> list[ShareSnapshot]:
        """Return every state as its snapshot would be, for tests and tools."""
        return [state.snapshot(state.write_ms) for state in self._states.values()]


_UNINITIALIZED = "The state of this share partition has not been initialized."


def _answer(token: Any, response: Any) -> ShareEffects:
    return Effects([], [(token, response)])


def _refusal(state: PartitionState, request: StateWrite) -> StateResult | None:
    if request.leader_epoch != NO_EPOCH and request.leader_epoch < state.leader_epoch:
        return StateResult(ErrorCode.FENCED_LEADER_EPOCH, _fenced_leader(state, request.leader_epoch))
    if request.state_epoch != NO_EPOCH and request.state_epoch < state.state_epoch:
        return StateResult(ErrorCode.FENCED_STATE_EPOCH, _fenced_state(state, request.state_epoch))
    if len(request.batches) > STATE_BATCHES_MAX:
        return StateResult(ErrorCode.INVALID_REQUEST, f"A write has at most {STATE_BATCHES_MAX} state batches.")
    if max(len(request.delays), len(request.given_up)) > STATE_BATCHES_MAX or (
        request.letters and len(request.letters.ranges) > LETTER_RANGES_MAX
    ):
        return StateResult(ErrorCode.INVALID_REQUEST, "A write has too many delays or letters.")
    for first, last, *_ in (*request.batches, *request.given_up):
        if not 0 <= first <= last:
            return StateResult(ErrorCode.INVALID_REQUEST, f"A state batch has the offsets {first} to {last}.")
    for _, _, delivery_state, _ in request.batches:
        if delivery_state not in STORED_STATES:
            return StateResult(ErrorCode.INVALID_REQUEST, f"Delivery state {delivery_state} cannot be stored.")
    return None


def _fenced_leader(state: PartitionState, leader_epoch: int) -> str:
    return f"Leader epoch {leader_epoch} has been replaced by {state.leader_epoch}."


def _fenced_state(state: PartitionState, state_epoch: int) -> str:
    return f"State epoch {state_epoch} has been replaced by {state.state_epoch}."
