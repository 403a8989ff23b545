"""Measures this Python's speed at a broker's typical work, in microseconds, for scripts/setup to choose by.

Distributions build Python with profile-guided optimisation. An interpreter without it, as pyenv compiles it by default,
is about a quarter slower.
"""

import time

TURNS = 20_000
TRIES = 40


class Part:
    __slots__ = ("end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def size(self) -> int:
        return self.end - self.start


def work() -> int:
    kept, total = {}, 0
    for turn in range(TURNS):
        part = Part(turn, turn + 3)
        kept[turn % 100] = (part, str(turn))
        total += part.size() + len(kept[turn % 7 if turn > 7 else 0][1])
    return total


def best_us() -> int:
    times = []
    for _ in range(TRIES):
        begun = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begun)
    return min(times) // 1000


if __name__ == "__main__":
    print(best_us())
