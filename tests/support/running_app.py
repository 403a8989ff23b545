"""An `App` on an event loop of its own, so that a test can reach its parts and ask it over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from flowstone.app import App
from flowstone.broker.requests.context import Intercept
from flowstone.ports.clock import Clock
from flowstone.ports.files import Files
from flowstone.ports.loops import new_event_loop
from tests.support.wire_client import Client

T = TypeVar("T")
TIMEOUT_S = 10.0
# A clean stop flushes every log.
STOP_TIMEOUT_S = 60.0


class LoopThread:
    """An event loop that runs in a thread for as long as the `with` block."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self._ended = self._runner.get_loop().create_future()
        self._thread = threading.Thread(target=self._runner.run, args=(self._wait(),))

    async def _wait(self) -> None:
        await self._ended

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.get_loop().call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join()
        self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = TIMEOUT_S) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._runner.get_loop()).result(timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """What the function returns when called on the loop."""
        returned: Future[T] = Future()
        self._runner.get_loop().call_soon_threadsafe(lambda: returned.set_result(function()))
        return returned.result(TIMEOUT_S)


class RunningApp(LoopThread):
    def __init__(
        self,
        data: str,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        intercept: Intercept | None = None,
        default_http: str = "",
        **settings: str,
    ) -> None:
        """Settings with underscores for dots; by default there is one listener, whose port is any free one."""
        super().__init__()
        values = {name if "." in name else name.replace("_", "."): value for name, value in settings.items()}
        values = {"listeners": "PLAINTEXT://127.0.0.1:0", **values, "log.dirs": data}
        self.app = App(values, files=files, clock=clock, intercept=intercept, default_http=default_http)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.run(self.app.start())
        except BaseException:
            super().__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.app.stop(), STOP_TIMEOUT_S)
        super().__exit__(kind, error, trace)

    def client(self, listener: str = "PLAINTEXT") -> Client:
        return Client(self.app.addresses[listener])

    def get(self, path: str) -> tuple[int, str]:
        """The status and the body of a page."""
        assert self.app.http_address is not None
        return get(self.app.http_address, path)


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()
