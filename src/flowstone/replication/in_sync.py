"""The leader's record of which replicas are in sync and what is committed. Pure: positions and times come in.

The rules (R1 to R8):

- The ISR is what the cluster has decided. A proposed change may be decided at any moment: the *maximal* ISR is both
  together. One proposal is pending at a time; it applies to the partition epoch it was made at.
- A follower's position is the offset it fetches from, which is durable with it (D5). It counts only from a fetch in
  this leader epoch, for the history before may be another. A fetch of an earlier life of its broker is refused; in a
  new life the position is what the new life says.
- The high watermark is the lowest position in the maximal ISR, the leader's own included; while one of them has no
  position it stays. It never goes back. It stays, too, while the ISR has fewer members than min.insync.replicas asks
  for: what consumers see is on as many disks as what is acknowledged.
- A follower is caught up when it fetches from the leader's end, or from where that was when it fetched before: then it
  was caught up at that time. A follower that has not been for `lag_time_max_s`, and is not at the end, leaves the ISR.
- A follower that is at or above the high watermark, and at or above the start of the leader's epoch, may join: it has
  everything that is committed, and nothing that is not the leader's. Under load the high watermark would always move
  ahead of it; so the high watermark waits for a follower that is caught up, for at most `JOIN_WAIT_S`, because the
  follower may be dying. The caller must ask again at `held_until_s`, when that wait is over. The high watermark never
  waits for a follower that the cluster would not let in: a fenced broker, another life of one, or one whose proposal
  was just refused.
- A follower that the cluster itself removes from the ISR is dead, or was: what it fetched before does not bring it
  back. A fetch that was parked meanwhile and is answered later is such a fetch (`is_repeated`).
- A proposal names the broker epoch of each member that has fetched (KIP-903): a broker that came back empty must not be
  let in for what its former life had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.state import NO_OFFSET, UNKNOWN_BROKER_EPOCH, IsrMember, PartitionState

# How long after a follower was last caught up the high watermark waits for it to join.
JOIN_WAIT_S = 1.0

ProposedIsr = tuple[IsrMember, ...]
# Whether the cluster would let this broker, with the broker epoch of its fetch, into an ISR.
IsEligible = Callable[[IsrMember], bool]


class Follower:
    """The leader's knowledge of one of the other replicas."""

    __slots__ = (
        "_fetched_s",
        "_leader_end_offset",
        "broker_epoch",
        "caught_up_s",
        "is_awaited",
        "log_start_offset",
        "position",
    )

    def __init__(self, caught_up_s: float) -> None:
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        self.position: int | None = None  # None: no fetch yet in this leader epoch
        self.log_start_offset = NO_OFFSET
        self.caught_up_s = caught_up_s
        self.is_awaited = True  # to join; False once it was refused, until it fetches again
        # At its last fetch: the time, and where the leader's log ended.
        self._fetched_s = -math.inf
        self._leader_end_offset = 0

    def fetched(self, broker_epoch: int, position: int, leader_end_offset: int, now_s: float) -> None:
        if position >= leader_end_offset:
            self.caught_up_s = now_s
        elif position >= self._leader_end_offset and self._fetched_s > self.caught_up_s:
            self.caught_up_s = self._fetched_s
        self.broker_epoch, self.position, self.is_awaited = broker_epoch, position, True
        self._fetched_s, self._leader_end_offset = now_s, leader_end_offset

    def note_leader_end(self, leader_end_offset: int, now_s: float) -> None:
        """Count a follower at the leader's end as caught up, even if it does not fetch because nothing is new."""
        if self.position is not None and self.position >= leader_end_offset:
            self.caught_up_s = now_s

    def lags(self, leader_end_offset: int, lag_time_max_s: float, now_s: float) -> bool:
        is_at_end = self.position is not None and self.position >= leader_end_offset
        return not is_at_end and now_s - self.caught_up_s > lag_time_max_s


class InSyncReplicas:
    def __init__(
        self, node_id: int, state: PartitionState, epoch_start_offset: int, lag_time_max_s: float, now_s: float
    ) -> None:
        """Create a leader's view at the start of its epoch. ISR members have the whole lag time to send a fetch."""
        self._node_id = node_id
        self._epoch_start_offset = epoch_start_offset
        self._lag_time_max_s = lag_time_max_s
        self.isr: tuple[int, ...] = ()
        self.proposed: ProposedIsr | None = None
        self._followers: dict[int, Follower] = {}
        self._maximal_isr: set[int] = set()  # without the leader
        # While `high_watermark` waits for a follower outside the ISR: the end of that wait. Otherwise None.
        self.held_until_s: float | None = None
        self.decided(state, now_s)

    def decided(self, state: PartitionState, now_s: float) -> None:
        """Apply a decision of the cluster in the same leader epoch; it voids a proposal made for the state before."""
        taken_out = self._expected_isr() - set(state.isr)
        known, self._followers = self._followers, {}
        for node_id in state.replicas:
            if node_id != self._node_id:
                unknown_since_s = now_s if node_id in state.isr else -math.inf
                follower = self._followers[node_id] = known.get(node_id) or Follower(unknown_since_s)
                if node_id in taken_out:
                    follower.position = None
        self.isr, self.proposed = state.isr, None
        self._note_maximal_isr()

    def _expected_isr(self) -> set[int]:
        """Return the replicas of the ISR that should have stayed in it, as far as this leader knew."""
        return set(self.isr) if self.proposed is None else {*self.isr} & {member.node_id for member in self.proposed}

    def refused(self) -> None:
        """Record that the pending proposal was refused."""
        for member in self.proposed or ():
            if member.node_id in self._followers:
                self._followers[member.node_id].is_awaited = False
        self.proposed = None
        self._note_maximal_isr()

    def _note_maximal_isr(self) -> None:
        proposed = () if self.proposed is None else (member.node_id for member in self.proposed)
        self._maximal_isr = {*self.isr, *proposed} - {self._node_id}

    # Positions

    def check(self, replica_id: int, broker_epoch: int) -> None:
        """Raise ApiError if the fetch is not from another replica, or is from an earlier life of its broker."""
        follower = self._followers.get(replica_id)
        if follower is None:
            # The follower may know of a decision that has not arrived here: it should retry.
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, f"broker {replica_id} has no replica here")
        if UNKNOWN_BROKER_EPOCH < broker_epoch < follower.broker_epoch:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica_id} has epoch {follower.broker_epoch}, not {broker_epoch}",
            )

    def fetched(
        self,
        replica_id: int,
        broker_epoch: int,
        position: int,
        leader_end_offset: int,
        now_s: float,
        *,
        is_repeated: bool = False,
    ) -> None:
        """Record that a replica that `check` accepted fetches from `position`: it has everything below durably.

        `is_repeated` marks a parked fetch that is read again. It says nothing new of a follower whose position was
        dropped since, or which was not let in since.
        """
        follower = self._followers[replica_id]
        if not is_repeated or (follower.position is not None and follower.is_awaited):
            follower.fetched(broker_epoch, position, leader_end_offset, now_s)

    def log_starts_at(self, replica_id: int, offset: int) -> None:
        """Record where the log of a replica that `check` accepted starts."""
        self._followers[replica_id].log_start_offset = offset

    def low_watermark(self, own: int, live: Container[int]) -> int:
        """Return the lowest start of the live replicas' logs, the leader's included; NO_OFFSET while one is unknown."""
        others = (each.log_start_offset for node_id, each in self._followers.items() if node_id in live)
        return min((own, *others))

    def high_watermark(
        self, own: int, min_insync_replicas: int, now_s: float, is_eligible: IsEligible = lambda member: True
    ) -> int | None:
        """Return the high watermark for the leader's own position, or None if it must not move.

        The result may be lower than an earlier one: what was committed stays committed. If the result waits for a
        follower that may join, `held_until_s` says when to ask again.
        """
        self.held_until_s = None
        if len(self.isr) < min(min_insync_replicas, len(self._followers) + 1):
            return None
        lowest = own
        for node_id in self._maximal_isr:
            position = self._followers[node_id].position
            if position is None:
                return None
            if position < lowest:
                lowest = position
        if len(self._maximal_isr) == len(self._followers):
            return lowest
        return self._held_for_joining(lowest, now_s, is_eligible)

    def _held_for_joining(self, committed: int, now_s: float, is_eligible: IsEligible) -> int:
        held = committed
        for node_id, follower in self._followers.items():
            position = follower.position
            if node_id in self._maximal_isr or position is None or position >= committed or not follower.is_awaited:
                continue
            until_s = follower.caught_up_s + JOIN_WAIT_S
            if now_s >= until_s or not is_eligible(IsrMember(node_id, follower.broker_epoch)):
                continue
            held = min(held, position)
            self.held_until_s = until_s if self.held_until_s is None else min(self.held_until_s, until_s)
        return held

    # Changes of the ISR

    def due_change(self, high_watermark: int, leader_end_offset: int, now_s: float) -> ProposedIsr | None:
        """Return the ISR to propose, or None if the present one is right or a proposal is pending."""
        for follower in self._followers.values():
            follower.note_leader_end(leader_end_offset, now_s)
        if self.proposed is not None:
            return None
        lagging = {
            node_id
            for node_id, follower in self._followers.items()
            if node_id in self.isr and follower.lags(leader_end_offset, self._lag_time_max_s, now_s)
        }
        joining = tuple(
            node_id
            for node_id, follower in self._followers.items()
            if node_id not in self.isr and self._may_join(follower, high_watermark)
        )
        if not lagging and not joining:
            return None
        return tuple(
            IsrMember(node_id, self._broker_epoch(node_id))
            for node_id in (*(each for each in self.isr if each not in lagging), *joining)
        )

    def propose(self, isr: ProposedIsr) -> None:
        """Record that a proposal is pending: it counts both as decided and as not decided."""
        assert self.proposed is None
        self.proposed = isr
        self._note_maximal_isr()

    def _may_join(self, follower: Follower, high_watermark: int) -> bool:
        position = follower.position
        return position is not None and position >= max(high_watermark, self._epoch_start_offset)

    def _broker_epoch(self, node_id: int) -> int:
        follower = self._followers.get(node_id)
        return follower.broker_epoch if follower is not None else UNKNOWN_BROKER_EPOCH
