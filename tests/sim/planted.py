"""The planted bugs and the seeds that find them: `python -m tests.sim.planted [NAME ...] [--seeds N]`.

Ends with 1 if a bug went unnoticed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from .bugs.bug import Found
from .bugs.bug import search as search_for
from .bugs.cluster_bugs import BUGS as CLUSTER_BUGS
from .bugs.queue_bugs import BUGS as QUEUE_BUGS
from .bugs.transaction_bugs import BUGS as TRANSACTION_BUGS
from .run import HASH_SEED

BUGS = CLUSTER_BUGS | TRANSACTION_BUGS | QUEUE_BUGS
SEEDS_MAX = 40  # most need one


def search(name: str, seeds_max: int = SEEDS_MAX) -> Found | None:
    """Return the first seed that finds the bug of that name, and what it finds."""
    return search_for(BUGS[name], seeds_max)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BUGS, []], help="which bugs; all by default")
    parser.add_argument("--transactions", action="store_true", help="those of transactions alone")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds may be tried for each")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim.planted", *sys.argv[1:]])
    unnoticed = 0
    names = arguments.names or (TRANSACTION_BUGS if arguments.transactions else BUGS)
    for name in names:
        started_s = time.monotonic()
        found = search(name, arguments.seeds)
        unnoticed += found is None
        told = f"seed {found.seed}: {found.problem}" if found is not None else "went unnoticed"
        print(f"{name}: {told} ({time.monotonic() - started_s:.0f} s)", flush=True)
    print(f"{len(names) - unnoticed} of {len(names)} bugs caught")
    return bool(unnoticed)


if __name__ == "__main__":
    sys.exit(main())
