"""A wall clock for decisions that cannot be taken back: it does not follow a sudden jump ahead of the machine's clock.

Retention by time, the expiry of producers and the removal of tombstones delete what is old. A
wall clock that is two hours ahead for a few seconds would make everything two hours older. So wall time is compared
with monotonic time: the expected time is the wall time at an anchor plus the monotonic time since.

- Up to `TOLERANCE_S` ahead of the expected time the wall clock is believed. The anchor is renewed every `HOLD_S`, so
  that a clock that drifts or is slewed is believed too.
- Further ahead it is in doubt, and the expected time counts. After `HOLD_S` in doubt the wall clock is believed: it was
  corrected, or the machine was suspended. Until then an operator can correct a clock that is wrong.
- While records that clients append now carry the expected time and not the wall time (`appended`), the doubt goes on,
  but no longer than `DOUBT_MAX_S`: a disk must not fill up because of a client whose clock is wrong.
- A clock that is behind is believed at once: nothing is deleted too early by it.
- A broker that starts compares with the steady time that it wrote with its last checkpoint. If that is more than
  `STOP_S_MAX` ago, it was a long stop or the clock is wrong. It is not known which, and for `HOLD_S` the time goes on
  from that checkpoint. A broker without a checkpoint compares with the newest record that it has from another machine
  (`newest_record`): it may be a follower that started with an empty disk and a wrong clock, and leads now. Until then
  the times of its checkpoints are unconfirmed: a start that finds such a time compares with both.

Every timer and all other times are the machine's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from flowstone.ports.clock import Clock, Timer

logger = logging.getLogger(__name__)

# How far the wall clock may be ahead of the expected time and still be believed.
TOLERANCE_S = 60.0
# How long a broker may have been stopped, by the wall clock at its start, for that clock to be believed.
STOP_S_MAX = 300.0
# How long a wall clock that jumped ahead, or started ahead, is not believed.
HOLD_S = 3600.0
# How long the clock is not believed at most, while records that clients append contradict it.
DOUBT_MAX_S = 24 * 3600.0


class SteadyClock:
    """A clock whose wall time does not follow jumps ahead of the machine's clock."""

    def __init__(self, clock: Clock, last_seen_ms: int | None = None, *, needs_witness: bool = False) -> None:
        """Create the clock. `last_seen_ms` is a steady time at which the broker is known to have run; None if unknown.

        With `needs_witness` nothing has confirmed that time, and the clock is compared with the first records too.
        """
        self._clock = clock
        self.monotonic: Callable[[], float] = clock.monotonic
        self._anchor_ms, self._anchor_s = clock.time_ms(), clock.monotonic()
        self._doubted_since_s: float | None = None
        self._contradicted_s = -math.inf
        self._witness_until_s = self._anchor_s + HOLD_S if needs_witness else -math.inf
        if last_seen_ms is not None:
            self._compare(last_seen_ms, "the last checkpoint")

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)

    def time_ms(self) -> int:
        """Return the wall time, or the expected time while the wall clock is in doubt."""
        wall_ms, now_s, expected_ms = self._clock.time_ms(), self._clock.monotonic(), self._expected_ms()
        if wall_ms - expected_ms <= TOLERANCE_S * 1000:
            self._believed(wall_ms, now_s)
            return wall_ms
        if self._doubted_since_s is None:
            self._doubted_since_s = now_s
            self._warn(wall_ms - expected_ms)
        elif self._is_doubt_over(now_s - self._doubted_since_s, now_s):
            logger.warning(
                "this machine's clock is still %.0f s ahead; retention by time uses it from now on", self.ahead_s
            )
            self._renew(wall_ms, now_s)
            return wall_ms
        return expected_ms

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the wall clock was too far ahead when the time was last read."""
        return self._doubted_since_s is not None

    @property
    def ahead_s(self) -> float:
        """Return by how much the wall clock is ahead of the expected time; negative if it is behind."""
        return (self._clock.time_ms() - self._expected_ms()) / 1000

    def latest_ms(self) -> int:
        """Return the later of the wall time and the expected time: for deadlines that must not come too early."""
        return max(self._clock.time_ms(), self._expected_ms())

    def appended(self, timestamp_ms: int) -> None:
        """Record the newest timestamp that a client gave a record of some log."""
        if self._doubted_since_s is not None and abs(timestamp_ms - self._expected_ms()) <= TOLERANCE_S * 1000:
            self._contradicted_s = self._clock.monotonic()

    @property
    def needs_witness(self) -> bool:
        """Return whether nothing has confirmed the clock yet, so that `newest_record` must be called."""
        return self._clock.monotonic() < self._witness_until_s

    def newest_record(self, timestamp_ms: int) -> None:
        """Record the newest timestamp of all records that this broker has."""
        if self.needs_witness:
            self._witness_until_s = -math.inf
            if not self.is_in_doubt:
                self._compare(timestamp_ms, "the newest record")

    def _compare(self, past_ms: int, what: str) -> None:
        wall_ms, now_s = self._clock.time_ms(), self._clock.monotonic()
        if wall_ms - past_ms <= STOP_S_MAX * 1000:
            return
        self._anchor_ms, self._anchor_s, self._doubted_since_s = past_ms, now_s, now_s
        logger.info(
            "by this machine's clock %s is %.0f minutes old. Retention by time continues from that time, and follows "
            "the clock again in %.0f minutes. If the clock is wrong, correct it before then",
            what,
            (wall_ms - past_ms) / 60_000,
            HOLD_S / 60,
        )

    def _expected_ms(self) -> int:
        return self._anchor_ms + int((self._clock.monotonic() - self._anchor_s) * 1000)

    def _believed(self, wall_ms: int, now_s: float) -> None:
        if self._doubted_since_s is not None:
            logger.warning("this machine's clock is right again: retention by time uses it")
            self._renew(wall_ms, now_s)
        elif now_s - self._anchor_s >= HOLD_S:
            self._renew(wall_ms, now_s)

    def _is_doubt_over(self, doubted_s: float, now_s: float) -> bool:
        is_contradicted = now_s - self._contradicted_s < HOLD_S
        return doubted_s >= (DOUBT_MAX_S if is_contradicted else HOLD_S)

    def _renew(self, wall_ms: int, now_s: float) -> None:
        self._anchor_ms, self._anchor_s, self._doubted_since_s = wall_ms, now_s, None

    def _warn(self, ahead_ms: int) -> None:
        logger.warning(
            "this machine's clock jumped ahead by %.0f s compared with its monotonic clock. retention.ms, "
            "delete.retention.ms and producer.id.expiration.ms ignore the jump for "
            "%.0f minutes. If the clock is wrong, correct it within that time (see `timedatectl` or "
            "`chronyc tracking`), or records are deleted too early; if it is right, nothing needs to be done",
            ahead_ms / 1000,
            HOLD_S / 60,
        )
