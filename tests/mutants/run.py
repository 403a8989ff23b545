"""Changes the broker's code in small ways and reports which changes the tests do not notice: `make mutants`.

A mutant is one change (`operators.py`). Of all mutants a seed picks some. For each, the tests that run the changed line
are run (`recorded.py`), those of the module's own test file first, then those of its package, the quickest first, until
one fails (`copies.py`). A mutant that the quickest do not notice is tested with the slower ones, and after that with
END_TO_END of its package, tests that start brokers, clusters and workers as processes of their own.

Everything happens in copies of the checkout in a temporary folder, one for each of at most two processes.

Mutants that change nothing anybody can observe are named in `judged.toml`, each with the reason; they are not run.
A mutant with which the test modules cannot be imported says nothing about the tests: it is named and not counted.

    python -m tests.mutants.run --count 300 --seed 1
    python -m tests.mutants.run --count 300 --seed 1 --done earlier-output
    python -m tests.mutants.run --count 300 --seed 1 --again earlier-output
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import recorded
from tests.mutants.copies import BROKEN, KILLED, NOT_RUN, SURVIVED, TIMED_OUT, Copy, Outcome, Stopped
from tests.mutants.operators import Mutant, find_mutants
from tests.mutants.recorded import SOURCES, Recording

PACKAGES = ("log", "replication", "coordinator", "cluster")
HOT_PATH = ("network/connection", "network/outbox", "network/receive_buffers", "network/unsent_bytes")
HOT_PATH += ("dispatch/dispatcher", "dispatch/deferred", "requests/parked", "requests/partition_lookup")
HOT_PATH += ("requests/batch_preparation", "requests/producer_admission", "handlers/produce", "handlers/fetch")
HOT_PATH += ("fetching/fetch_partitions", "fetching/fetch_sessions", "fetching/replica_reads", "loop/cold_reads")
# Tested against a real ZooKeeper only (tests/zookeeper).
LEFT_OUT = ("cluster/zookeeper",)
LINE_TESTS = ("tests/unit/log", "tests/unit/replication", "tests/unit/coordinator", "tests/unit/cluster")
LINE_TESTS += ("tests/unit/broker", "tests/unit/transactions", "tests/unit/client", "tests/unit/queues")
LINE_TESTS += tuple(f"tests/unit/cli/{name}" for name in ("access", "cluster", "dlq", "group", "share", "topic", "txn"))
LINE_TESTS += ("tests/unit/embedded", "tests/unit/test_embedded.py", "tests/unit/test_recreated_topics.py")
LINE_TESTS += tuple(f"tests/unit/test_embedded_{name}.py" for name in ("clock", "cluster", "faults", "groups", "modes"))
LINE_TESTS += ("tests/unit/test_promise.py",)
HOSTILE = ("tests/hostile/test_batches.py", "tests/hostile/test_requests.py")
# What runs only in the log's worker processes is recorded for no test.
WORKERS = tuple(f"tests/unit/log/test_{name}.py" for name in ("worker_loop", "scrubber", "cleaner"))
SIMULATION = ("tests/sim/test_simulation.py",)
END_TO_END = {
    "log": (*WORKERS, *HOSTILE, *SIMULATION),
    "replication": SIMULATION,
    "coordinator": (*HOSTILE[1:], *SIMULATION),
    "cluster": (*HOSTILE[1:], *SIMULATION),
    "broker": (*HOSTILE, *SIMULATION),
}
PROCESSES_MAX = 2
KILLED_PERCENT_MIN = 97.0
_LINE_NUMBER = re.compile(r":\d+ ")


def sources() -> list[str]:
    """Return the files that are changed, relative to src/flowstone."""
    files = [path for package in PACKAGES for path in (SOURCES / package).rglob("*.py")]
    files += [SOURCES / "broker" / f"{name}.py" for name in HOT_PATH]
    names = sorted(str(path.relative_to(SOURCES)) for path in files)
    return [name for name in names if not name.startswith(LEFT_OUT)]


def record(copies: Sequence[Copy], modules: Sequence[str]) -> None:
    """Run the test modules once, a part of them in each copy, and note which test runs which line."""
    print(f"running {len(modules)} test modules, to see which lines each test runs", flush=True)
    recorded.keep_sources(sources())
    folder = recorded.FOLDER / "lines"
    folder.mkdir(parents=True, exist_ok=True)

    def record_part(number: int) -> None:
        words = (str(folder), str(copies[number].sources), *sources())
        if part := modules[number :: len(copies)]:
            copies[number].record(part, FLOWSTONE_LINES=os.pathsep.join(words))

    with ThreadPoolExecutor(len(copies)) as threads:
        list(threads.map(record_part, range(len(copies))))


def read_judged() -> dict[tuple[str, str, str], str]:
    """Return the reasons why mutants cannot be noticed, by file, function and change."""
    with Path(__file__).with_name("judged.toml").open("rb") as file:
        judged = tomllib.load(file).get("equivalent", [])
    return {(each["file"], each["function"], each["change"]): each["reason"] for each in judged}


def pick(count: int, seed: int) -> list[Mutant]:
    """Return that many mutants of all that can be made, chosen by `rank`.

    A mutant's rank depends on itself and the seed alone: after a change elsewhere nearly the same are picked.
    """
    mutants = [mutant for file in sources() for mutant in find_mutants(file, (SOURCES / file).read_bytes())]
    stale = set(read_judged()) - {(mutant.file, mutant.function, mutant.change) for mutant in mutants}
    for file, function, change in sorted(stale):
        print(f"the code has changed: remove from judged.toml {file} {function}: {change}")
    print(f"{len(mutants)} mutants can be made; {min(count, len(mutants))} are picked by seed {seed}", flush=True)
    return sorted(mutants, key=lambda mutant: rank(mutant, seed))[:count]


def rank(mutant: Mutant, seed: int) -> bytes:
    """Return a number that is random but the same in every run, and while the mutant's lines move."""
    return hashlib.sha256("\0".join((str(seed), mutant.file, mutant.function, mutant.change)).encode()).digest()


def name_of(mutant: Mutant) -> str:
    """Return how a mutant is named in output, without the line number, which may move."""
    return _LINE_NUMBER.sub(" ", str(mutant), count=1)


def named(log: str, *results: str) -> set[str]:
    """Return the names of the mutants that have one of the results in earlier output."""
    names = set()
    for line in log.splitlines():
        for result in results:
            _, found, rest = line.partition(f"{result}: ")
            if found:
                names.add(_LINE_NUMBER.sub(" ", rest.partition(" tests/")[0], count=1))
    return names


def test_all(mutants: Sequence[Mutant], recording: Recording, copies: Sequence[Copy], quick: bool) -> list[Outcome]:
    """Test each mutant in one of the copies, print each outcome, and return them, of all that were finished."""
    idle: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        idle.put(copy)

    def test(mutant: Mutant) -> Outcome:
        copy = idle.get()
        try:
            return _test(copy, mutant, recording, quick)
        finally:
            idle.put(copy)

    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(len(copies)) as threads:
        tasks: list[Future[Outcome]] = [threads.submit(test, mutant) for mutant in mutants]
        try:
            for number, task in enumerate(as_completed(tasks), start=1):
                outcomes.append(task.result())
                print(f"[{number}/{len(mutants)}] {outcomes[-1]}", flush=True)
        except (Stopped, KeyboardInterrupt):
            print("stopped before the end", flush=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
    return outcomes


def _test(copy: Copy, mutant: Mutant, recording: Recording, quick: bool) -> Outcome:
    first, later = recording.tests_of(mutant)
    outcome = copy.test(mutant, first)
    if outcome.result == SURVIVED and recording.is_imported(mutant):
        outcome = copy.test(mutant, first, is_imported=True)
    for tests in () if quick else (later, END_TO_END[mutant.file.split("/")[0]]):
        if outcome.result not in (SURVIVED, NOT_RUN):
            break
        if tests and (next_outcome := copy.test(mutant, tests)).result != SURVIVED:
            outcome = next_outcome
    return outcome


def report(outcomes: list[Outcome], judged_count: int, seconds: float) -> bool:
    """Print what was not noticed and the sums; return whether enough was."""
    counts = Counter(outcome.result for outcome in outcomes)
    for result in (TIMED_OUT, BROKEN, NOT_RUN, SURVIVED):
        for outcome in outcomes:
            if outcome.result == result:
                print(outcome)
    noticed = counts[KILLED] + counts[TIMED_OUT]
    percent = 100 * noticed / max(1, len(outcomes) - counts[BROKEN])
    sums = ", ".join(f"{counts[each]} {each}" for each in (KILLED, TIMED_OUT, SURVIVED, NOT_RUN, BROKEN))
    print(f"{len(outcomes)} mutants in {seconds / 60:.0f} minutes: {sums}; {judged_count} judged equivalent, not run")
    print(f"{percent:.1f} % noticed; at least {KILLED_PERCENT_MIN:.0f} % are wanted")
    return percent >= KILLED_PERCENT_MIN


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, choices=range(1, PROCESSES_MAX + 1), default=PROCESSES_MAX)
    parser.add_argument("--only", default="", help="only mutants whose file, line or change contains this text")
    parser.add_argument("--done", type=Path, help="not what this output of an earlier round has a result of")
    parser.add_argument("--again", type=Path, help="only what this output of an earlier run names as not noticed")
    parser.add_argument("--quick", action="store_true", help="only the quickest tests")
    parser.add_argument("--as-recorded", action="store_true", help="do not record test modules that have changed")
    return parser.parse_args()


def main() -> int:
    options = _options()
    judged = read_judged()
    picked = [mutant for mutant in pick(options.count, options.seed) if options.only in str(mutant)]
    if options.again is not None:
        names = named(options.again.read_text(), SURVIVED, NOT_RUN)
        picked = [mutant for mutant in picked if name_of(mutant) in names]
    if options.done is not None:
        names = named(options.done.read_text(), KILLED, TIMED_OUT, SURVIVED, NOT_RUN, BROKEN)
        picked = [mutant for mutant in picked if name_of(mutant) not in names]
    to_run = [mutant for mutant in picked if (mutant.file, mutant.function, mutant.change) not in judged]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flowstone-mutants-", ignore_cleanup_errors=True) as folder:
        modules = recorded.test_modules(LINE_TESTS)
        count = min(options.processes, max(1, len(to_run)))
        copies = [Copy(Path(folder) / str(number), modules) for number in range(count)]
        if not options.as_recorded and (outdated := recorded.outdated(modules)):
            record(copies, outdated)
        outcomes = test_all(to_run, recorded.read(modules), copies, options.quick)
    enough = report(outcomes, len(picked) - len(to_run), time.monotonic() - began)
    return 0 if enough and len(outcomes) == len(to_run) else 1


if __name__ == "__main__":
    sys.exit(main())
