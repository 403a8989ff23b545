"""`python -m bench.transactions.plain DIRECTORY`: plain produce and fetch of this Flowstone and of another checkout.

The other checkout is usually a commit before transactions, with its kernel built (docs/benchmarks.md). Both brokers run
in this program's environment and alternate within a round; the figures are medians of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench import wire
from bench.load import Figures
from bench.modes import FLOWSTONE, NOT_FLUSHED
from bench.servers import Flowstone
from bench.topics import RoundFailed
from bench.workers import Load, run_round

BATCH_BYTES = (1_000, 16_000)
VALUE_BYTES = 100
ROUND_BYTES = {1_000: 20_000_000, 16_000: 150_000_000}
WARM_UP_ROUNDS = 2
ROUNDS = 9
COST_MAX = 1.03
COSTS = ("produce_cpu_s_per_gb", "fetch_cpu_s_per_gb")

HERE = Path(__file__).resolve().parents[2]


class Checkout(Flowstone):
    """Flowstone as it is in a directory, run by this program's interpreter."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self._directory = directory

    def _prepare(self) -> list[str]:
        _, *arguments = super()._prepare()
        start = "import sys; from flowstone.cli.main import main; sys.exit(main())"
        return ["env", f"PYTHONPATH={self._directory / 'src'}", sys.executable, "-c", start, *arguments]


def ratios(now: Flowstone, before: Flowstone, load: Load, rounds: int) -> Iterator[dict[str, float]]:
    """Yield the ratios of each counted round's costs, now to before."""
    for number in range(WARM_UP_ROUNDS + rounds):
        done: dict[Flowstone, Figures] = {}
        for server in (now, before)[:: 1 if number % 2 else -1]:
            done[server] = run_round(server, load)
        if number >= WARM_UP_ROUNDS:
            yield {cost: done[now][cost] / done[before][cost] for cost in COSTS}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions.plain", description=__doc__)
    parser.add_argument("before", type=Path, help="the directory of the other checkout")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"counted rounds (default {ROUNDS})")
    chosen = parser.parse_args(words)
    settings, missed = NOT_FLUSHED.settings[FLOWSTONE], 0
    with Checkout(HERE, settings) as now, Checkout(chosen.before.resolve(), settings) as before:
        for batch_bytes in BATCH_BYTES:
            batch = wire.record_batch(batch_bytes, VALUE_BYTES, int(time.time() * 1000))
            load = Load(batch, ROUND_BYTES[batch_bytes], NOT_FLUSHED.acks)
            try:
                found = list(ratios(now, before, load, chosen.rounds))
            except RoundFailed as failure:
                print(f"plain: {failure}", file=sys.stderr)
                return 1
            for cost in COSTS:
                each = sorted(round_[cost] for round_ in found)
                middle = statistics.median(each)
                missed += middle > COST_MAX
                verdict = "passed" if middle <= COST_MAX else "MISSED"
                spread = f"rounds {each[0]:.2f} to {each[-1]:.2f}"
                print(f"{batch_bytes:,} B batches: {cost} {middle:.3f}x, {spread}, at most {COST_MAX}x: {verdict}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
