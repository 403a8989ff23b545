"""What clients create and give up again is not remembered: objects are counted, not bytes (`make memory`: bytes).

The garbage collector is off meanwhile. What only a collector can free counts as remembered: collections are rare.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest

from flowstone.ports.clock import VirtualClock
from tests.hostile import churn
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

WARM_UP_ROUNDS = 5  # every shard of the coordinator has its first group
ROUNDS = 15
OPERATIONS = ROUNDS * churn.TOGETHER
# Longer than what is kept for a while on purpose: deleted files and empty groups, a minute each.
LONG_MS = 2 * 60 * 1000 + 1000
OBJECTS_PER_OPERATION_MAX = 0.75
SETTLE_ROUNDS_MAX = 50


class Settling:
    """A broker whose clock can be moved beyond every delay, with nothing else under way."""

    def __init__(self, app: RunningApp, clock: VirtualClock, client: Client) -> None:
        self._app, self._clock, self.client = app, clock, client

    def objects(self) -> int:
        """Return how many objects there are once what is kept for a while is gone, and threads have finished."""
        self._app.run(self._clock.advance(LONG_MS))
        self._app.run(self._clock.advance(LONG_MS))
        counts = [0]
        for _ in range(SETTLE_ROUNDS_MAX):
            counts.append(self._app.call(lambda: len(gc.get_objects())))
            if abs(counts[-1] - counts[-2]) < OPERATIONS * OBJECTS_PER_OPERATION_MAX / 10:
                break
            time.sleep(0.2)  # a thread removes files meanwhile
        return counts[-1]


@pytest.fixture(scope="module")
def settling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settling]:
    clock = VirtualClock()
    data = str(tmp_path_factory.mktemp("churn") / "data")
    gc.disable()
    try:
        settings = {"group_initial_rebalance_delay_ms": "0", "connections_max_idle_ms": str(2**31)}
        with RunningApp(data, clock=clock, **settings) as app, app.client() as client:
            churn.begin(client)
            yield Settling(app, clock, client)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", churn.KINDS)
def test_what_was_created_and_given_up_leaves_no_objects_behind(settling: Settling, kind: str) -> None:
    for _ in range(WARM_UP_ROUNDS):
        churn.KINDS[kind](settling.client)
    before = settling.objects()
    for _ in range(ROUNDS):
        churn.KINDS[kind](settling.client)
    growth = (settling.objects() - before) / OPERATIONS
    print(f"{kind}: {growth:.2f} objects each")
    assert growth < OBJECTS_PER_OPERATION_MAX
