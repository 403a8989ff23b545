"""A single ZooKeeper server on loopback, from the jars in PySpark: for tests and clusters on one machine.

It needs only Java and PySpark (the `spark` extra). With the chosen flags it uses 56 MB and answers after 0.3 s. It
writes no log: of the logging jars only the interface is loaded.

The server runs in its own session, so Ctrl-C in the terminal reaches only the program that started it. It ends with
that program, for whatever reason: before the shell becomes the JVM it starts a watcher, which kills the JVM when the
pipe from that program breaks. PR_SET_PDEATHSIG would end it with the thread that happened to start it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil  # noqa: TID251 - looks for a program, touches no file
import signal
import socket  # noqa: TID251 - keeps a port from being given to others; nothing is sent through it
import subprocess
import tempfile  # noqa: TID251 - the embedding program's scratch space, which the broker's file port must not know
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from flowstone.embedded.settings import HOST
from flowstone.errors import StartupError
from flowstone.ports.clock import Clock, SystemClock
from flowstone.ports.network import Stream

TICK_MS = 500
# Sessions may be as short as a tick, for tests, and as long as a client requests.
SESSION_TIMEOUT_MS_MAX = 120_000
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
ANSWER_TIMEOUT_S = 1.0

_JARS = ("zookeeper-*.jar", "slf4j-api-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")
# For a port with TLS.
_TLS_JARS = ("netty-*.jar",)
_FLAGS = (
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    # In KiB: its log is preallocated in steps of this size instead of 64 MiB.
    "-Dzookeeper.preAllocSize=1024",
)
# Not ZooKeeperServerMain, which never removes old logs and snapshots.
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# "$$" is the JVM, because the shell becomes it. A line means a normal end; the end of the pipe, that its owner died.
_END_WITH_OWNER = 'exec 3<&0; (read -r _ <&3 || kill -9 $$) & exec "$@" <&- 3<&-'


class ZooKeeperServer:
    """A ZooKeeper server, running from construction until `stop`, `kill` or the end of its `with` block."""

    def __init__(
        self,
        directory: str | None = None,
        port: int = 0,
        tick_ms: int = TICK_MS,
        *,
        host: str = HOST,
        session_timeout_ms_max: int = SESSION_TIMEOUT_MS_MAX,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Start the server. Without `directory` its data is in a temporary one, which `stop` removes.

        `settings` are additional ones, by ZooKeeper's names. A server of an ensemble answers once a majority runs.
        Raises StartupError if the server does not answer.
        """
        jars = _jars(has_tls="secureClientPort" in (settings or {}))
        self._command_start = [_java(), *_FLAGS, "-cp", os.pathsep.join(jars), _MAIN]
        # Held as long as this object exists: a killed server restarts on the same port.
        self._reservation = _reserve(host, port)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="flowstone-zookeeper-")
            directory = self._temporary.name
        self._directory = Path(directory)
        self._clock: Clock = SystemClock()
        self.port: int = self._reservation.getsockname()[1]
        self._host = host
        self.address = f"{host}:{self.port}"
        self._settings = {
            "dataDir": self._directory,
            "clientPort": self.port,
            "clientPortAddress": host,
            "tickTime": tick_ms,
            "minSessionTimeout": tick_ms,
            "maxSessionTimeout": session_timeout_ms_max,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
            "autopurge.purgeInterval": 1,
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self) -> None:
        """Start again after `kill`, with the same port and data; return when the server answers."""
        assert self._process is None
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "zookeeper.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        self._process = subprocess.Popen(
            ["sh", "-c", _END_WITH_OWNER, "zookeeper", *self._command_start, str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._wait_serving(self._process)

    def stop(self) -> None:
        """End the server and remove its temporary directory. May be called repeatedly, and after `kill`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._wait_ended(self._process)
        self._clean_up()

    def kill(self) -> None:
        """End the server like a crash. Its data stays: `start` starts it again."""
        process = self._running()
        process.kill()
        self._wait_ended(process)

    def pause(self) -> None:
        """Suspend the server: it answers nothing, and connections stay open."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "ZooKeeper is not running"
        return self._process

    def _wait_serving(self, process: subprocess.Popen[bytes]) -> None:
        deadline = self._clock.monotonic() + START_TIMEOUT_S
        while not _answers(self._host, self.port):
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(POLL_S)
                self._wait_ended(process)
                raise StartupError(f"ZooKeeper ended at once, with exit code {code}: is {self.address} in use?")
            if self._clock.monotonic() > deadline:
                self.kill()
                raise StartupError(f"ZooKeeper did not answer on {self.address} within {START_TIMEOUT_S:g} s")

    def _wait_ended(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(b"\n")  # ends the watcher, before the process id may be reused
            process.stdin.flush()
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._process = None

    def _clean_up(self) -> None:
        self._reservation.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def _answers(host: str, port: int) -> bool:
    answer = bytearray(4)
    try:
        stream = Stream(host, port, ANSWER_TIMEOUT_S)
    except OSError:
        return False
    try:
        stream.send_all([b"srvr"], ANSWER_TIMEOUT_S)
        stream.receive_all(memoryview(answer), ANSWER_TIMEOUT_S)
    except OSError:
        return False
    finally:
        stream.close()
    return answer == b"Zook"  # "Zookeeper version: ..."; "This ZooKeeper instance is not ... serving" before that


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        raise StartupError("ZooKeeper needs Java, and there is none: install a Java 17 runtime, or set JAVA_HOME")
    return java


def _jars(*, has_tls: bool) -> Sequence[str]:
    patterns = (*_JARS, *_TLS_JARS) if has_tls else _JARS
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise StartupError("ZooKeeper comes with PySpark, which is not installed: pip install 'flowstone[spark]'")
    directory = Path(spec.submodule_search_locations[0]) / "jars"
    jars = [str(jar) for pattern in patterns for jar in sorted(directory.glob(pattern))]
    if len(jars) < len(patterns):
        raise StartupError(f"ZooKeeper's jars are not all in {directory}: pip install 'flowstone[spark]'")
    return jars


def _reserve(host: str, port: int) -> socket.socket:
    """Return a socket that reserves the port while the server is down; the server can still listen on it."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        reservation.bind((host, port))
    except OSError as error:
        reservation.close()
        raise StartupError(f"ZooKeeper cannot listen on {host}:{port}: {error.strerror}") from error
    return reservation
