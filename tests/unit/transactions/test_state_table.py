"""Every transactional request in every version, for a producer in every state: what a running broker answers.

The expected answers are the table in `state_table.txt`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.errors import ErrorCode
from tests.support.running_app import RunningApp
from tests.unit.transactions.states import EVENTS, SETTINGS, HeldMarkers, States, identify, prepare

TABLE = Path(__file__).with_name("state_table.txt")
CODES = {
    "ok": ErrorCode.NONE,
    "CT": ErrorCode.CONCURRENT_TRANSACTIONS,
    "PF": ErrorCode.PRODUCER_FENCED,
    "IPE": ErrorCode.INVALID_PRODUCER_EPOCH,
    "ITS": ErrorCode.INVALID_TXN_STATE,
    "IPM": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "TA": ErrorCode.TRANSACTION_ABORTABLE,
    "NER": ErrorCode.NOT_ENOUGH_REPLICAS,
    "LOAD": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
_ROW = re.compile(r"(?P<event>.+?) +(?P<first>\d+)-(?P<last>\d+) +(?P<identity>\w+) +(?P<codes>\w+(?: +\w+){6})")
# The API key of each request, and the versions that must all be in the table.
APIS = {"Produce": 0, "InitProducerId": 22, "AddPartitionsToTxn": 24, "AddOffsetsToTxn": 25, "EndTxn": 26}
APIS |= {"TxnOffsetCommit": 28}


class Row(NamedTuple):
    event: str
    versions: range
    identity: str
    codes: dict[str, ErrorCode]  # by state


def rows() -> Iterator[Row]:
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith(("#", "request ")):
            continue
        found = _ROW.fullmatch(line)
        assert found is not None, f"not a row: {line}"
        codes = [CODES[each] for each in found["codes"].split()]
        versions = range(int(found["first"]), int(found["last"]) + 1)
        yield Row(found["event"], versions, found["identity"], dict(zip(States.NAMES, codes, strict=True)))


ROWS = list(rows())


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[States]:
    data = str(tmp_path_factory.mktemp("broker"))
    with RunningApp(data, idle_poll_us="0", **SETTINGS) as app, app.client() as client:
        prepare(client)
        yield States(client, HeldMarkers(app))


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.event}-{row.identity}-{row.versions[0]}" for row in ROWS])
def test_every_request_is_answered_as_the_table_says(states: States, row: Row) -> None:
    found = {
        (state, version): ErrorCode(EVENTS[row.event](identify(states.make(state), row.identity), version)).name
        for state in row.codes
        for version in row.versions
    }
    assert found == {(state, version): code.name for state, code in row.codes.items() for version in row.versions}


def test_the_table_has_every_version_of_every_api() -> None:
    for name, key in APIS.items():
        endpoint = ENDPOINTS[key]
        given = {version for row in ROWS if row.event.startswith(name) for version in row.versions}
        assert given == {*range(endpoint.min_version, endpoint.max_version + 1)}, name


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("kind", ["prepare", "complete"])
def test_the_first_protocols_end_leaves_no_epoch_before_that_might_be_repeated(
    states: States, kind: str, outcome: str
) -> None:
    """The epoch just below belongs to a fenced producer, which EndTxn 5 must not take for a lost answer."""
    fenced = identify(states.make(f"{kind} {outcome}", end_version=4), "before")
    told = {fenced.end(commit=commit).error_code for commit in (True, False)}
    assert told == {ErrorCode.CONCURRENT_TRANSACTIONS if kind == "prepare" else ErrorCode.PRODUCER_FENCED}
