"""Who appends at once and who waits for a round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowstone.coordinator.append_rounds import CROWD_SHARDS, ROUND_INTERVAL_S, AppendRounds


class ManualLoop(asyncio.SelectorEventLoop):
    """Its time passes when a test says so."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s


class Rounds(AppendRounds):
    def __init__(self, loop: ManualLoop) -> None:
        super().__init__()
        self._loop = loop
        self.appended: list[Any] = []

    def come(self, *shards: Any) -> list[Any]:
        """Who of them has appended at once."""
        before = len(self.appended)
        for shard in shards:
            self.join(shard, lambda shard=shard: self.appended.append(shard))  # type: ignore[misc]
        return self.appended[before:]

    async def pass_interval(self) -> None:
        self._loop.now_s += ROUND_INTERVAL_S
        for _ in range(2):  # a timer that is due is put among what is ready, and then runs
            await asyncio.sleep(0)


def on_rounds(test: Callable[[Rounds], Any]) -> None:
    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, ManualLoop)
        runner.run(test(Rounds(loop)))


CROWD = tuple(range(CROWD_SHARDS))


def test_few_shards_append_at_once() -> None:
    async def test(rounds: Rounds) -> None:
        for _ in range(3):
            assert rounds.come(*CROWD[1:]) == [*CROWD[1:]]
            await rounds.pass_interval()

    on_rounds(test)


def test_one_shard_appends_at_once_however_often_it_comes() -> None:
    async def test(rounds: Rounds) -> None:
        for _ in range(3):
            assert len(rounds.come(*["same"] * 100)) == 100
            await rounds.pass_interval()

    on_rounds(test)


def test_after_an_interval_with_many_shards_the_next_is_a_round_in_the_order_they_came() -> None:
    async def test(rounds: Rounds) -> None:
        assert rounds.come(*CROWD) == [*CROWD]
        await rounds.pass_interval()
        rounds.appended.clear()
        assert rounds.come(3, 1, 2, 0) == []
        await rounds.pass_interval()
        assert rounds.appended == [3, 1, 2, 0]

    on_rounds(test)


def test_rounds_end_when_the_crowd_is_gone() -> None:
    async def test(rounds: Rounds) -> None:
        rounds.come(*CROWD)
        await rounds.pass_interval()
        assert rounds.come("last") == []
        await rounds.pass_interval()
        assert rounds.come("next") == ["next"]

    on_rounds(test)


def test_whoever_comes_after_a_pause_does_not_wait() -> None:
    async def test(rounds: Rounds) -> None:
        rounds.come(*CROWD)
        await rounds.pass_interval()
        await rounds.pass_interval()
        assert rounds.come("next") == ["next"]

    on_rounds(test)


def test_who_comes_while_a_round_is_served_is_in_the_next_one() -> None:
    async def test(rounds: Rounds) -> None:
        rounds.come(*CROWD)
        await rounds.pass_interval()
        rounds.come(*CROWD[1:])
        rounds.join(0, lambda: rounds.come("again") and None)
        await rounds.pass_interval()
        assert "again" not in rounds.appended
        await rounds.pass_interval()
        assert rounds.appended[-1] == "again"

    on_rounds(test)
