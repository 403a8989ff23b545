"""Many simulations: `python -m tests.sim.run --seeds 10000 [--first N] [--seconds S]`; `--story N` tells one seed's.

Runs on every processor. Ends with 1 if a seed found something wrong; each such seed is printed with what it found, and
gives the same again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

from .simulation import QUEUES, Loads, Outcome, simulate

HASH_SEED = "0"
PROBLEMS_TOLD_MAX = 8


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further seed after so long")
    parser.add_argument("--least", type=int, default=0, help="whatever --seconds says, so many are run")
    parser.add_argument("--queues", action="store_true", help="with share groups alone in every seed")
    parser.add_argument("--story", type=int, help="tell what happens in this seed")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Strings in sets hash by it: a seed must give the same run in every process.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim.run", *sys.argv[1:]])
    if arguments.story is not None:
        outcome = simulate(arguments.story, loads=QUEUES if arguments.queues else None)
        print("\n".join(outcome.story), _summary(outcome), *outcome.problems, sep="\n")
        return bool(outcome.problems)
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    started_s = time.monotonic()

    def seeds() -> Iterator[int]:
        for count in range(arguments.seeds):
            if count >= arguments.least and time.monotonic() - started_s > arguments.seconds:
                return
            yield arguments.first + count

    ran, failed, acknowledged, transactions, tasks, slowest_recovery_s = 0, [], 0, 0, 0, 0.0
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        for outcome in _results(processes, seeds(), QUEUES if arguments.queues else None):
            ran += 1
            acknowledged += outcome.acknowledged_count
            transactions += outcome.transaction_count
            tasks += outcome.task_count
            slowest_recovery_s = max(slowest_recovery_s, outcome.recovered_s)
            if outcome.problems:
                failed.append(outcome.seed)
                print(f"seed {outcome.seed}: {_summary(outcome)}")
                print(*outcome.problems[:PROBLEMS_TOLD_MAX], sep="\n", flush=True)
    took_s = time.monotonic() - started_s
    print(
        f"{ran} seeds, {len(failed)} with problems {failed[:20] or ''}; {acknowledged} records acknowledged, "
        f"{transactions} transactions committed, {tasks} tasks accepted, slowest recovery "
        f"{slowest_recovery_s:.1f} s; {took_s:.0f} s"
    )
    return bool(failed)


def _results(processes: ProcessPoolExecutor, seeds: Iterator[int], loads: Loads | None) -> Iterator[Outcome]:
    """No more seeds are begun than there are processes to run them, so that the time limit counts."""
    running = [processes.submit(simulate, seed, None, loads) for seed in islice(seeds, (os.cpu_count() or 1) + 1)]
    while running:
        outcome = running.pop(0).result()
        running += [processes.submit(simulate, seed, None, loads) for seed in islice(seeds, 1)]
        yield outcome


def _summary(outcome: Outcome) -> str:
    return (
        f"digest {outcome.digest:08x}, {outcome.simulated_s:.1f} s simulated in {outcome.turn_count} turns, "
        f"{outcome.acknowledged_count} acknowledged, {outcome.seen_count} seen, {outcome.committed_count} committed, "
        f"{outcome.transaction_count} transactions, {outcome.task_count} tasks accepted, "
        f"recovered in {outcome.recovered_s:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
