"""What the searches for long stretches have in common: limits, tries, the broker, and the report at the end.

Every stretch that was measured is kept with its name. At the end of a run the longest are printed
(`tests/hostile/conftest.py`); FLOWSTONE_HOSTILE_REPORT=FILE writes all of them to a file, and
FLOWSTONE_HOSTILE_SAMPLES=1 prints where the loop was in the long ones.
"""

from __future__ import annotations

import gc
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from flowstone.cli.up.process import collector_paused
from tests.hostile.loop_watch import LoopWatch, Stretch
from tests.hostile.stretches.sampling import Sampling
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, Closed

IS_LONG = bool(os.environ.get("FLOWSTONE_HOSTILE_LONG"))
IS_SAMPLED = bool(os.environ.get("FLOWSTONE_HOSTILE_SAMPLES"))
REPORT = os.environ.get("FLOWSTONE_HOSTILE_REPORT", "")
STRETCH_S_MAX = 0.05
# The same request again, if something else than the request was in its way.
TRIES = 3
TIMEOUT_S = 120.0
# Work that a request leaves for after its response is watched too.
AFTERWARDS_S = 0.02
# Longer stretches are named in the report.
NOTED_S = 0.03
RECEIVED_AT_ONCE_BYTES = 1 << 20


class Searched(NamedTuple):
    """The stretches of one request, try by try."""

    name: str
    stretches: list[Stretch]

    @property
    def shortest(self) -> Stretch:
        return min(self.stretches, key=lambda each: each.held_s)

    def __str__(self) -> str:
        return f"{self.name}: {', then '.join(map(str, self.stretches))}"


searched: list[Searched] = []


def check(app: RunningApp, name: str, work: Callable[[], object], undo: Callable[[], object] = lambda: None) -> None:
    """Watch the loop while the work is done, and fail if it was held for long each time.

    What the work has changed is undone before it is done again, or it would have less to do.
    """
    result = Searched(name, [])
    searched.append(result)
    for number in range(TRIES):
        if number:
            undo()
        with _sampled(app) as sampling, LoopWatch(app) as watch:
            work()
            time.sleep(AFTERWARDS_S)
        result.stretches.append(watch.longest)
        if sampling is not None and watch.longest_s >= NOTED_S:
            print(result, *sampling.between(*watch.when_s), sep="\n")
        if watch.longest_s < STRETCH_S_MAX:
            return
    raise AssertionError(f"held for {', then '.join(map(str, result.stretches))}")


def _sampled(app: RunningApp) -> AbstractContextManager[Sampling | None]:
    return Sampling(app.call(threading.get_ident)) if IS_SAMPLED else nullcontext()


def answered(client: Client, request: bytes) -> bytes:
    """Send the request, receive its response and return the first bytes of it.

    Keeping all of it would take the interpreter's lock from the loop.
    """
    client.send(request)
    (left,) = struct.unpack(">i", _received(client, bytearray(4), 4))
    part, first = bytearray(RECEIVED_AT_ONCE_BYTES), b""
    while left:
        got = client.socket.recv_into(part, min(left, len(part)))
        if not got:
            raise Closed
        first = first or bytes(part[: min(got, 64)])
        left -= got
    return first


def _received(client: Client, part: bytearray, count: int) -> bytearray:
    at = 0
    while at < count:
        try:
            got = client.socket.recv_into(memoryview(part)[at:count])
        except ConnectionResetError as error:
            raise Closed from error
        if not got:
            raise Closed
        at += got
    return part


@contextmanager
def collector_of_a_broker() -> Iterator[None]:
    """The garbage collector as in a broker's own process, with what the tests have made so far left alone."""
    thresholds = gc.get_threshold()
    gc.collect()
    with collector_paused():
        pass
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def report(results: Iterable[Searched]) -> list[str]:
    """A line for each request with a long stretch in any of its tries, those whose shortest is longest first."""
    ordered = sorted(results, key=lambda each: each.shortest.held_s, reverse=True)
    return [str(each) for each in ordered if max(stretch.held_s for stretch in each.stretches) >= NOTED_S]
