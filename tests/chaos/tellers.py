"""Processes of tellers: their output becomes claims, and they are killed, stopped and replaced without end.

A teller that is replaced is killed, or stopped for a while: then it goes on beside its successor, a zombie that must
not commit anything any more, until it is killed too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from .history import Journal
from .teller import FIXED, IN_GROUP
from .transfers import Claims

ROOT = Path(__file__).parents[2]
FIXED_GROUP, MEMBERS_GROUP = "tellers", "members"
LIBRDKAFKA = (sys.executable, "-m", "tests.chaos.teller")
REPLACE_PAUSE_S = (2.0, 8.0)
ZOMBIE_CHANCE = 0.4
STOPPED_S = (0.5, 12.0)
ZOMBIE_S = 3.0  # for which it goes on
END_TIMEOUT_S = 120.0


class Desk(NamedTuple):
    """What a process of tellers is to do, whoever it is, and the program that it runs."""

    group: str
    orders: str
    mode: str
    first: int
    count: int
    program: Sequence[str]


class Staff(NamedTuple):
    """How many processes have input partitions of their own and how many share theirs in a group; what they run.

    The program takes the arguments of `tests.chaos.teller` and says the same lines.
    """

    fixed: int = 3
    members: int = 1
    tellers: int = 6  # of each process
    program: Sequence[str] = LIBRDKAFKA

    def desks(self, orders: str, errands: str) -> list[Desk]:
        fixed = [
            Desk(FIXED_GROUP, orders, FIXED, number * self.tellers, self.tellers, self.program)
            for number in range(self.fixed)
        ]
        members = [
            Desk(MEMBERS_GROUP, errands, IN_GROUP, number * self.tellers, self.tellers, self.program)
            for number in range(self.members)
        ]
        return fixed + members


class Till(NamedTuple):
    """Where tellers write to, and the file of what they say besides."""

    bootstrap: str
    accounts: str
    partitions: int
    log: Path


class TellerProcess:
    def __init__(self, till: Till, desk: Desk, name: str) -> None:
        self.name = name
        with till.log.open("ab") as log:
            self._process = self._start(till, desk, log)

    def _start(self, till: Till, desk: Desk, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(*desk.program, till.bootstrap, desk.group, desk.orders, till.accounts),
                *(str(till.partitions), str(desk.count), str(desk.first), desk.mode, self.name),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            start_new_session=True,
        )

    def lines(self) -> Iterator[bytes]:
        """Yield what it says until it ends; a line that its death has cut short is left out."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            yield from (line for line in output if line.endswith(b"\n"))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self, number: int, timeout_s: float = END_TIMEOUT_S) -> bool:
        """Send a signal that ends it; return whether it did in time, killed if not."""
        self._process.send_signal(number)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


class Tellers:
    """All desks, each with a process at any time; a thread replaces them until `rest`."""

    def __init__(self, till: Till, desks: Sequence[Desk], claims: Claims, journal: Journal) -> None:
        self._till, self._desks, self._claims, self._journal = till, desks, claims, journal
        self.errors: Counter[str] = Counter()
        self.failures: list[str] = []
        self.kills = self.zombies = self.asked_before_abort = 0
        self.last_commit_s: dict[str, float] = {}  # by group
        self._chance = random.Random(7)
        self._names = 0
        self._readers: list[threading.Thread] = []
        self._zombies: list[tuple[float, bool, TellerProcess]] = []  # what is due when: to go on (True), or to die
        self._ended = threading.Event()
        self._lets_be = threading.Event()
        self._at_desk = [self._start(desk) for desk in desks]
        self._replacer = threading.Thread(target=self._replace, name="replacer", daemon=True)
        self._replacer.start()

    def _start(self, desk: Desk) -> TellerProcess:
        self._names += 1
        process = TellerProcess(self._till, desk, f"{desk.group}{desk.first}n{self._names}")
        reader = threading.Thread(target=self._read, args=(process, desk), daemon=True)
        reader.start()
        self._readers = [*(each for each in self._readers if each.is_alive()), reader]
        return process

    def _read(self, process: TellerProcess, desk: Desk) -> None:
        for line in process.lines():
            told = json.loads(line)
            event = told.pop("event")
            if event == "committed":
                self._claims.committed.add(told["transaction"])
                self.last_commit_s[desk.group] = time.monotonic()
            elif event == "aborted":
                self._claims.aborted.add(told["transaction"])
                self.asked_before_abort += told["is_asked"]
            elif event == "started over":
                self.errors[told["error"]] += 1
            else:
                self.failures.append(told["error"])
            self._journal.write(event, **told)

    def let_be(self) -> None:
        """Kill, stop and continue no process until `go_on`.

        A member that is killed leaves offsets behind for which its successor must wait until the transaction times out,
        and every further one prolongs that. How long a group needs after a fault can only be told without this.
        """
        self._lets_be.set()

    def go_on(self) -> None:
        """Replace processes again."""
        self._lets_be.clear()

    def _replace(self) -> None:
        while not self._ended.wait(self._chance.uniform(*REPLACE_PAUSE_S)):
            if self._lets_be.is_set():
                continue
            at = self._chance.randrange(len(self._desks))
            old = self._at_desk[at]
            if self._chance.random() < ZOMBIE_CHANCE:
                old.signal(signal.SIGSTOP)
                self._zombies.append((time.monotonic() + self._chance.uniform(*STOPPED_S), True, old))
                self.zombies += 1
            else:
                old.end(signal.SIGKILL)
                self.kills += 1
            self._journal.write("replaced", name=old.name)
            self._at_desk[at] = self._start(self._desks[at])
            self._go_on_with_zombies()

    def _go_on_with_zombies(self, *, at_end: bool = False) -> None:
        now_s = time.monotonic()
        due = [each for each in self._zombies if at_end or each[0] <= now_s]
        self._zombies = [each for each in self._zombies if each not in due]
        for _, is_stopped, zombie in due:
            if is_stopped and not at_end:
                zombie.signal(signal.SIGCONT)
                self._zombies.append((now_s + ZOMBIE_S, False, zombie))
            else:
                zombie.end(signal.SIGKILL)

    def rest(self) -> None:
        """End all of them, those at their desks after the transactions that are under way; hear all they have said."""
        self._ended.set()
        self._replacer.join(END_TIMEOUT_S)
        self._go_on_with_zombies(at_end=True)
        for process in self._at_desk:
            process.signal(signal.SIGTERM)
        for process in self._at_desk:
            if not process.end(signal.SIGTERM):
                self.failures.append(f"{process.name} did not end")
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)

    def close(self) -> None:
        self._ended.set()
        self._replacer.join(END_TIMEOUT_S)
        self._go_on_with_zombies(at_end=True)
        for process in self._at_desk:
            process.end(signal.SIGKILL)
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
