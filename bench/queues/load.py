"""The load of the queue benchmark: a JVM with Kafka's share consumers (`ShareLoad.java`), driven over its pipes.

The program is compiled once for a run. Each wait for a line of its output is bounded.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from scripts.fetch_kafka import FetchError, java_command, kafka_classpath

from bench.load import Figures
from bench.servers import Server
from bench.topics import RoundFailed

SOURCE = Path(__file__).with_name("ShareLoad.java")
COMPILE_TIMEOUT_SECONDS = 120
LINE_TIMEOUT_SECONDS = 90
STOP_TIMEOUT_SECONDS = 20
HEAP = "-Xmx1G"


@dataclass(frozen=True, slots=True)
class ShareLoad:
    """What the consumers of a group do; `acknowledgement` is `batches` or `each`, `ordering` `none` or `key`."""

    consumers: int
    acknowledgement: str = "batches"
    ordering: str = "none"
    batch_bytes: int = 16_384
    poll_records: int = 500  # the client's default


def compile_load(directory: Path) -> None:
    """Compile the program into a directory. Raises FetchError if there is no Java compiler, or it refuses."""
    javac = str(Path(java_command()).resolve().with_name("javac"))
    try:
        done = subprocess.run(
            [javac, "-cp", kafka_classpath(), "-d", str(directory), str(SOURCE)],
            capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise FetchError(f"no {javac}: the queue benchmark needs a Java development kit") from None
    if done.returncode:
        raise FetchError(f"{SOURCE.name} was not compiled: {done.stdout + done.stderr}")


class Consumers:
    """A group of share consumers that are assigned the topic's one partition of one broker."""

    def __init__(self, server: Server, classes: Path, topic: str, load: ShareLoad) -> None:
        self._server = server
        words = (server.address, topic, f"group-of-{topic}", load.consumers, load.acknowledgement, load.ordering)
        self._process = subprocess.Popen(
            [java_command(), HEAP, "-cp", f"{classes}:{kafka_classpath()}", "ShareLoad",
             *map(str, words), str(load.batch_bytes),
             str(load.poll_records)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(self._process.stdout, self._lines), daemon=True).start()

    def __enter__(self) -> Self:
        self._expect("ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the program ends with its input
        try:
            self._process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def consume(self, records: int, seconds: int) -> Figures:
        """Consume so many records, or for so long; return the rate and the broker's processor time."""
        self._say(f"fill {records}")
        self._expect("filled")
        self._say(f"consume {records} {seconds}")
        self._expect("first")
        cpu_before = self._server.cpu_seconds()
        consumed, nanoseconds = map(int, self._expect("consumed"))
        cpu = self._server.cpu_seconds() - cpu_before
        if not consumed:
            raise RoundFailed("nothing was consumed")
        return {"records_per_s": consumed * 1e9 / nanoseconds, "cpu_s_per_million": cpu * 1e6 / consumed}

    def delays(self, rate: int, records: int) -> Figures:
        """Produce records at a rate; return how long their delivery took, and the broker's processor time."""
        self._say(f"latency {rate} {records}")
        self._expect("first")
        cpu_before = self._server.cpu_seconds()
        _, p50_ms, p99_ms = map(float, self._expect("delivered"))
        cpu = self._server.cpu_seconds() - cpu_before
        return {"p50_ms": p50_ms, "p99_ms": p99_ms, "cpu_s_per_million": cpu * 1e6 / records}

    def _say(self, command: str) -> None:
        assert self._process.stdin is not None
        try:
            print(command, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise RoundFailed("the consumers' process has ended") from None

    def _expect(self, word: str) -> list[str]:
        """Return the words after the first one of the next line. Raises RoundFailed if it is another answer."""
        try:
            line = self._lines.get(timeout=LINE_TIMEOUT_SECONDS)
        except queue.Empty:
            raise RoundFailed(f"no answer {word!r} after {LINE_TIMEOUT_SECONDS} s") from None
        first, *rest = line.split() or [""]
        if first != word:
            raise RoundFailed(line.strip() or "the consumers' process has ended")
        return rest


def _read(output: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in output:
        lines.put(line)
    lines.put("")
