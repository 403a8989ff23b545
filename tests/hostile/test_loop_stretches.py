"""No request holds the event loop for long, however large the limits let it be: a search over every API.

What counts is the processor time of the loop's thread, so that other programs of the machine do not count but for what
they evict from caches: a request that seems to hold the loop is sent again, a few times, and the least counts. What it
has changed is undone before, or it would have less to do.

`make test` searches with requests of some thousand elements. FLOWSTONE_HOSTILE_LONG=1 makes them as large as the limits
allow (about ten minutes). FLOWSTONE_HOSTILE_ACCESS=allowed or denied runs it with an authorizer that allows or denies
everything.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.cli.up.process import collector_paused
from flowstone.wire.apis import APIS
from flowstone.wire.record_batch import Record, build_batch
from tests.hostile.stretches.undoing import Request, undoing
from tests.support.acl_clients import STANDARD
from tests.support.running_app import RunningApp
from tests.support.transactions import TransactionClient
from tests.support.wire_client import Client, Closed, api_key, frame, produce_request

from .loop_watch import LoopWatch
from .worst_case import Case
from .worst_requests import GROUP, TRANSACTIONAL_ID, WIDE, WIDE_PARTITIONS, cases

# Of processor time, on a machine with nothing else to do.
STRETCH_S_MAX = 0.05
# The same request again, if something else than the request was in its way.
TRIES = 3
TIMEOUT_S = 120.0
PRODUCE = 0
# A topic that takes large batches: the promised size in the quick search, and more in the long one.
LARGE, LARGE_BATCH_MIB = "large", (16, 40, 96)

IS_LONG = bool(os.environ.get("FLOWSTONE_HOSTILE_LONG"))
ACCESS = os.environ.get("FLOWSTONE_HOSTILE_ACCESS", "")
CASES = list(cases())

pytestmark = pytest.mark.measures_time


@pytest.fixture(scope="module", autouse=True)
def collector() -> Iterator[None]:
    """The garbage collector as in a broker's own process, and what the tests have made so far left alone."""
    thresholds = gc.get_threshold()
    gc.collect()
    with collector_paused():
        pass
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("stretches"))
    settings = {"group_initial_rebalance_delay_ms": "0", "max_partitions": "60000"}
    if ACCESS:
        settings |= {"authorizer_class_name": STANDARD, "super_users": "User:ANONYMOUS"}
    with RunningApp(data, **settings) as running:
        with Client(running.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            assert client.create_topic(WIDE, WIDE_PARTITIONS) == 0
            assert client.create_topic(LARGE, max_message_bytes=str(LARGE_BATCH_MIB[-1] << 20)) == 0
            for name in ("FindCoordinator", "FindCoordinator of transactions"):
                find = next(case for case in CASES if case.name == name)
                client.ask(find.version, find.make(1))
            producer = TransactionClient(client, TRANSACTIONAL_ID)
            producer.begin()
            assert producer.pair == (0, 0)
            commit = next(case for case in CASES if case.name == "OffsetCommit of many partitions")
            assert client.ask(commit.version, commit.make(WIDE_PARTITIONS)).topics[0].partitions[0].error_code == 0
        if ACCESS == "denied":
            access = running.app.services.access
            assert access is not None
            running.call(partial(setattr, access._authorizer, "_super_users", frozenset()))
            running.call(access._forget)
        yield running


def test_every_api_has_a_worst_request() -> None:
    searched = {api_key(case.make(1)) for case in CASES}
    assert {APIS[key].name for key in ENDPOINTS if key != PRODUCE} == {APIS[key].name for key in searched}
    assert GROUP


@pytest.mark.parametrize("size_mib", LARGE_BATCH_MIB if IS_LONG else LARGE_BATCH_MIB[:1])
def test_a_produce_of_one_large_batch_does_not_hold_the_loop(app: RunningApp, size_mib: int) -> None:
    value = bytes((size_mib << 20) - 1000)
    request = frame(9, produce_request(LARGE, build_batch([Record(0, int(time.time() * 1000), None, value)])))
    check(app, request)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {case.version}")
def test_no_request_holds_the_loop(app: RunningApp, case: Case) -> None:
    count = case.full if IS_LONG else case.quick
    check(app, frame(case.version, case.make(count)), lambda: undoing(case, count))


def check(app: RunningApp, request: bytes, undone_by: Callable[[], Sequence[Request]] = list) -> None:
    stretches_s: list[float] = []
    for _ in range(TRIES):
        if stretches_s:
            with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
                for version, body in undone_by():
                    client.ask(version, body)
        with LoopWatch(app) as watch, Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as client:
            client.send(request)
            with suppress(Closed):  # refused as too large
                client.receive()
        stretches_s.append(watch.longest_s)
        if watch.longest_s < STRETCH_S_MAX:
            return
    raise AssertionError(f"held for {[f'{each * 1000:.0f} ms' for each in stretches_s]}")
