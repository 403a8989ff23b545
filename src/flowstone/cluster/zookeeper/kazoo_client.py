"""Extensions of kazoo: closing a connection silently, shorter connection timeouts, and the granted session timeout.

Both classes are passed to kazoo through its public parameters, and use as little of its internals as possible.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.loggingsupport import BLATHER

logger = logging.getLogger(__name__)


class ImpatientHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's threads and sockets, with a way to end a connection silently, and with shorter timeouts.

    A server that is just starting may take a connection and never answer on it. kazoo would wait for it until the
    session is over.
    """

    def __init__(self, answer_timeout_s: float) -> None:
        super().__init__()
        self._answer_timeout_s = answer_timeout_s
        self._socket: Any = None
        self._is_cut = self._is_answered = False

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_cut:
            raise ConnectionAbortedError("dropped")
        self._is_answered = False
        self._socket = super().create_connection(*args, **kwargs)
        return self._socket

    def select(self, readable: Any, writable: Any, failed: Any, timeout: float | None = None) -> Any:
        if not self._is_answered and timeout is not None:
            timeout = min(timeout, self._answer_timeout_s)
        ready = super().select(readable, writable, failed, timeout)
        self._is_answered |= bool(ready[0])
        return ready

    def cut(self) -> None:
        self._is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(2)  # both directions; kazoo's thread, which waits on it, closes it


class NegotiatedTimeout(logging.Logger):
    """The logger given to kazoo: drops its lines except for errors, and reads the granted timeout from them."""

    def __init__(self) -> None:
        super().__init__("kazoo", BLATHER)
        self.timeout_s = 0.0

    def _log(self, level: int, msg: object, args: Any, *rest: Any, **options: Any) -> None:
        if level == BLATHER and str(msg).startswith("Session created"):
            _, _, negotiated_ms, *_ = args
            self.timeout_s = negotiated_ms / 1000
        elif level >= logging.ERROR:
            logger.log(level, msg, *args, exc_info=options.get("exc_info"))
