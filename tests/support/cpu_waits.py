"""How long threads waited for a processor, according to Linux: what a busy machine adds to every measured time."""

from __future__ import annotations

from pathlib import Path

NS_PER_S = 1_000_000_000


class CpuWaits:
    """The time for which threads were ready to run and did not run, summed. Always 0 where the system does not tell."""

    def __init__(self, *threads: tuple[int, int]) -> None:
        """Each thread is a process id and a thread id; the main thread's id is its process's."""
        self._paths = [Path(f"/proc/{process}/task/{thread}/schedstat") for process, thread in threads]

    def total_s(self) -> float:
        return sum(map(_wait_ns, self._paths)) / NS_PER_S


def _wait_ns(path: Path) -> int:
    try:
        return int(path.read_text().split()[1])  # time on a processor, time waiting for one, turns
    except OSError:
        return 0
