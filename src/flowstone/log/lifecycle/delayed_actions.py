"""Actions that run after a delay, with one timer for each length of delay.

A deleted partition's files are removed after `file.delete.delay.ms`. A timer for each would cost over a kilobyte for a
minute, and clients may create and delete hundreds of topics per second. Actions with the same delay run in the order in
which they were added, so the timer of the first is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from flowstone.ports.clock import Clock, Timer

Action = Callable[[], None]

# A timer may fire a little early. Actions due within this time run at once instead of waiting for another timer.
EARLY_S = 0.001


class DelayedActions:
    def __init__(self, clock: Clock, run: Callable[[Action], object]) -> None:
        """Create an empty queue. `run` is called with each action when its delay is over."""
        self._clock, self._run = clock, run
        # By length of delay: the actions in the order in which they are due, and the timer of the first.
        self._queues: dict[int, deque[tuple[float, Action]]] = {}
        self._timers: dict[int, Timer] = {}

    def __len__(self) -> int:
        """Return the number of actions that have not been run."""
        return sum(map(len, self._queues.values()))

    def add(self, delay_ms: int, action: Action) -> None:
        """Run the action after the delay, unless `clear` is called before."""
        due_s = self._clock.monotonic() + delay_ms / 1000
        queue = self._queues.get(delay_ms)
        if queue is None:
            queue = self._queues[delay_ms] = deque()
            self._set_timer(delay_ms, delay_ms / 1000)
        queue.append((due_s, action))

    def clear(self) -> None:
        """Forget all actions that have not been run."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._queues.clear()

    def _set_timer(self, delay_ms: int, wait_s: float) -> None:
        self._timers[delay_ms] = self._clock.call_later(wait_s, lambda: self._run_due(delay_ms))

    def _run_due(self, delay_ms: int) -> None:
        """Run the actions of one queue that are due, and set the timer for the next."""
        queue, now_s = self._queues[delay_ms], self._clock.monotonic()
        while queue and queue[0][0] <= now_s + EARLY_S:
            self._run(queue.popleft()[1])
        if queue:
            self._set_timer(delay_ms, queue[0][0] - now_s)
        else:
            del self._queues[delay_ms], self._timers[delay_ms]
