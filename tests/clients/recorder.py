"""A port before the broker's that writes down which API versions a client asks with.

It looks at the first four bytes of each request (API key and version) and passes everything on unchanged. The broker
must advertise this port, or clients would go around it after their first answer.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from contextlib import closing, suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
START_TIMEOUT_S = 10
_LENGTH = struct.Struct(">i")
_KEY_AND_VERSION = struct.Struct(">hh")


class Recorder:
    """Listens once entered; `target_port` may be set later, before the first client comes."""

    def __init__(self) -> None:
        self.seen: dict[int, set[int]] = {}
        self.target_port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._pass_on, HOST, 0), self._loop)
        self._server = listening.result(START_TIMEOUT_S)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError), closing(writer):
            broker_reader, broker_writer = await asyncio.open_connection(HOST, self.target_port)
            with closing(broker_writer):
                # Until either side goes, which it may whenever it likes.
                await asyncio.gather(self._requests(reader, broker_writer), _copy(broker_reader, writer))

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length = await reader.readexactly(_LENGTH.size)
            request = await reader.readexactly(_LENGTH.unpack(length)[0])
            api_key, version = _KEY_AND_VERSION.unpack_from(request)
            self.seen.setdefault(api_key, set()).add(version)
            writer.write(length + request)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError("the broker has closed")
