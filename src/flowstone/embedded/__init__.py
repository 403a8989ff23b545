"""A broker inside this process: for tests, notebooks and small programs.

Owns a thread with an event loop of its own, and the temporary directory where none was named. The broker is the same as
`flowstone up` runs, on a real socket; only this process's own affairs (signals, logging, garbage collection) are left
alone. Calls may come from any thread.

    with flowstone.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
"""

from __future__ import annotations

import asyncio
import tempfile  # noqa: TID251 - the embedding program's scratch space, which the broker's file port must not know
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from flowstone.app import App
from flowstone.config import LONG_MAX, MIB

HOST = "127.0.0.1"
# Kafka's names, as `settings` has them. Small, since a test may run many brokers; what is not here has its usual value.
DEFAULT_SETTINGS: Mapping[str, str] = {
    "num.flush.threads": "1",
    "num.reader.threads": "1",
    "queued.max.request.bytes": str(64 * MIB),
    "log.open.files.max": "256",
    "shutdown.timeout.ms": "5000",
    "offsets.topic.num.partitions": "1",
    # The members of a test's group come one after the other, and the test waits for the first assignment.
    "group.initial.rebalance.delay.ms": "0",
}
# Nothing in a temporary directory outlives the process: waiting for the disk would buy nothing.
TEMPORARY_SETTINGS: Mapping[str, str] = {"log.flush.interval.messages": str(LONG_MAX)}


class Broker:
    """Serves once constructed, until `stop`, `kill` or the end of its `with` block."""

    def __init__(
        self,
        *,
        data: str | None = None,
        port: int = 0,
        http: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Without `data` it lives in a temporary directory, removed at the end. ConfigError, StartupError.

        With `http` it serves health and metrics too, on the address that `http` then is.
        """
        self._temporary = tempfile.TemporaryDirectory(prefix="flowstone-") if data is None else None
        self.data_directory = self._temporary.name if self._temporary is not None else str(data)
        values = {
            **DEFAULT_SETTINGS,
            **(TEMPORARY_SETTINGS if self._temporary is not None else {}),
            **({"http.listener": f"{HOST}:0"} if http else {}),
            **(settings or {}),
            "log.dirs": self.data_directory,
            "listeners": f"PLAINTEXT://{HOST}:{port}",
        }
        # The address of its pages, http://HOST:PORT; None where they are off.
        self.http: str | None = None
        self._serving: Future[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool], int]] = Future()
        self._thread = threading.Thread(target=self._run, args=(values,), name="flowstone-broker", daemon=True)
        self._thread.start()
        try:
            self._loop, self._ending, bound_port = self._serving.result()
        except BaseException:
            self._clean_up()
            raise
        self.bootstrap = f"{HOST}:{bound_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops cleanly and removes the temporary directory. May be called again, and after `kill`."""
        self._end(clean=True)
        self._clean_up()

    def kill(self) -> None:
        """Ends the broker as if its process had died. Its data stays until `stop`."""
        self._end(clean=False)

    def _end(self, *, clean: bool) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(_resolve, self._ending, clean)
            self._thread.join()

    def _clean_up(self) -> None:
        self._thread.join()
        if self._temporary is not None:
            self._temporary.cleanup()

    # In the broker's own thread

    def _run(self, values: Mapping[str, str]) -> None:
        with asyncio.Runner(loop_factory=_new_event_loop) as runner:
            try:
                runner.run(self._serve(values))
            except BaseException as error:
                # Before it serves the caller waits for the outcome; afterwards the thread's own report is all there is.
                if self._serving.done():
                    raise
                self._serving.set_exception(error)

    async def _serve(self, values: Mapping[str, str]) -> None:
        app = App(values)
        await app.start()
        loop = asyncio.get_running_loop()
        ending: asyncio.Future[bool] = loop.create_future()
        if app.http_address is not None:
            self.http = f"http://{app.http_address}"
        _host, bound_port = next(iter(app.addresses.values()))
        self._serving.set_result((loop, ending, bound_port))
        if await ending:
            await app.stop()
        else:
            app.kill()


def _resolve(ending: asyncio.Future[bool], clean: bool) -> None:
    if not ending.done():
        ending.set_result(clean)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
