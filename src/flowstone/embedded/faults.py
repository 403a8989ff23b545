"""Fault injection: requests of one API that get an error, a late response, or none.

`Faults` is called between dispatch and the handlers. A test's thread creates a fault, and the broker's event loop
applies it; one lock guards the shared state. An error replaces the handler, so the request is not executed. A delay
holds back the response of an executed request, by the broker's clock, so that a virtual clock can advance it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.error_responses import error_response
from flowstone.config import nearest
from flowstone.errors import ErrorCode, ProtocolError
from flowstone.wire.apis import APIS
from flowstone.wire.message import Message
from flowstone.wire.messages import MetadataRequest, MetadataResponse

ERROR_MESSAGE = "a fault that the test injected"
METADATA = "Metadata"
_SERVED = sorted(APIS[key].name for key in ENDPOINTS)


class Fault:
    """An injected fault, active until it is removed, its `with` block ends, or it was applied `times` times."""

    def __init__(
        self,
        faults: Faults,
        api_name: str,
        *,
        error: ErrorCode | None,
        delay_ms: int,
        disconnect: bool,
        times: int | None,
        client_id: str | None,
    ) -> None:
        self.api_name, self.error, self.delay_ms, self.disconnect = api_name, error, delay_ms, disconnect
        self.times, self.client_id = times, client_id
        self._faults = faults
        self._met = threading.Condition()
        self._hits = 0

    def __repr__(self) -> str:
        effects = [
            *([self.error.name] if self.error is not None else ()),
            *([f"{self.delay_ms} ms"] if self.delay_ms else ()),
            *(["disconnect"] if self.disconnect else ()),
        ]
        return f"<Fault {self.api_name}: {', '.join(effects)}; met {self.hits} times>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    @property
    def hits(self) -> int:
        """The number of requests to which the fault was applied."""
        return self._hits

    def remove(self) -> None:
        self._faults.remove(self)

    def wait(self, hits: int = 1, timeout: float = 10) -> None:
        """Wait until the fault was applied `hits` times. Raises TimeoutError if it was not."""
        with self._met:
            if not self._met.wait_for(lambda: self._hits >= hits, timeout):
                raise TimeoutError(f"{self!r} was not applied {hits} times in {timeout:g} s")

    def concerns(self, api_name: str, client_id: str | None) -> bool:
        is_wanted = self.client_id is None or self.client_id == client_id
        return self.api_name == api_name and is_wanted and (self.times is None or self._hits < self.times)

    def hit(self) -> None:
        with self._met:
            self._hits += 1
            self._met.notify_all()


class Faults:
    """The faults of one broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: tuple[Fault, ...] = ()

    def add(
        self,
        api_name: str,
        *,
        error: ErrorCode | None = None,
        delay_ms: int = 0,
        disconnect: bool = False,
        times: int | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Add a fault. If several match a request, the oldest applies.

        Raises ValueError if the arguments are invalid.
        """
        if api_name not in _SERVED:
            raise ValueError(f"no API {api_name!r} is served{nearest(api_name, _SERVED)}")
        if delay_ms < 0 or (times is not None and times < 1):
            raise ValueError("delay_ms is 0 or more, times 1 or more")
        if error is ErrorCode.NONE or (error is not None and disconnect) or not (error or delay_ms or disconnect):
            raise ValueError("a fault is an error, a delay or a disconnect, or a delay before one of the two")
        fault = Fault(
            self, api_name, error=error, delay_ms=delay_ms, disconnect=disconnect, times=times, client_id=client_id
        )
        with self._lock:
            self._faults += (fault,)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._lock:
            self._faults = tuple(each for each in self._faults if each is not fault)

    # On the broker's loop

    def intercept(self, api_name: str, handler: Handler) -> Handler:
        """Return the handler that dispatch must call instead of `handler`."""

        def handle(services: Services, context: RequestContext, request: Any) -> Any:
            for fault in self._faults:
                if fault.concerns(api_name, context.session.client_id):
                    return _answer(fault, handler, services, context, request)
            return handler(services, context, request)

        return handle


def _answer(fault: Fault, handler: Handler, services: Services, context: RequestContext, request: Any) -> Any:
    if fault.error is None:
        fault.hit()
        if not fault.disconnect:
            response = handler(services, context, request)
            return None if response is None else _answer_late(fault, services, response)
        return _close_late(fault, services) if fault.delay_ms else _close(fault)
    if getattr(request, "acks", None) == 0:
        fault.hit()
        return _close(fault)  # there is no response: as in Kafka, closing the connection signals the error
    refusal: Message | Awaitable[Message] | None = None
    if fault.api_name != METADATA:
        refusal = error_response(fault.api_name, context.api_version, request, fault.error, ERROR_MESSAGE)
    elif _asks_for_topics(services, context, request):
        refusal = _refuse_topics(fault.error, handler, services, context, request)
    if refusal is None:
        return handler(services, context, request)
    fault.hit()
    return _answer_late(fault, services, refusal) if fault.delay_ms else refusal


async def _answer_late(fault: Fault, services: Services, response: Message | Awaitable[Any]) -> Any:
    answer = await response if inspect.isawaitable(response) else response
    await services.clock.sleep(fault.delay_ms / 1000)
    return answer


async def _close_late(fault: Fault, services: Services) -> None:
    await services.clock.sleep(fault.delay_ms / 1000)
    _close(fault)


def _close(fault: Fault) -> None:
    raise ProtocolError(f"{ERROR_MESSAGE}: {fault.api_name}")


async def _refuse_topics(
    error: ErrorCode, handler: Handler, services: Services, context: RequestContext, request: Any
) -> MetadataResponse:
    """Return an error for the topics together with the real brokers, which a client needs for its next request."""
    without_creation = MetadataRequest(topics=request.topics, allow_auto_topic_creation=False)
    answer: MetadataResponse = await handler(services, context, without_creation)  # type: ignore[misc]
    for topic in answer.topics:
        topic.error_code, topic.partitions = error, ()
    return answer


def _asks_for_topics(services: Services, context: RequestContext, request: MetadataRequest) -> bool:
    """Return whether the response will contain topics: requested ones, or all."""
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return bool(services.metadata.image.topics)
    return bool(request.topics)
