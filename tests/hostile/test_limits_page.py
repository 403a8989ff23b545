"""The page of limits names only limits that exist, with the values that hold."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from flowstone.config import BROKER_SETTINGS, TOPIC_SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([\d.]+) \| (.+) \|$")
ROWS = [match.groups() for line in PAGE.read_text().splitlines() if (match := ROW.match(line))]
# Constants of these modules that end in _MAX are limits on what clients do.
MODULES = (
    "broker.network.receive_buffers",
    "broker.network.unsent_bytes",
    "broker.loop.cold_reads",
    "broker.dispatch.dispatcher",
    "broker.dispatch.large_requests",
    "broker.requests.batch_preparation",
    "broker.requests.parked",
    "broker.requests.producer_admission",
    "broker.requests.transaction_verification",
    "log.partition.record_checks",
    "log.partition.validation",
    "wire.compression",
    "wire.primitives",
    "cluster.decisions.partition_plans",
)
NOT_LIMITS = {"ARRAY_LENGTH_UNCHECKED_MAX", "TIMESTAMP_MAX"}


def current_value(name: str) -> object:
    if name.startswith("flowstone."):
        module, _, constant = name.rpartition(".")
        return getattr(importlib.import_module(module), constant)
    return (BROKER_SETTINGS.get(name) or TOPIC_SETTINGS[name]).default


@pytest.mark.parametrize(("name", "value", "consequence"), ROWS, ids=[row[0] for row in ROWS])
def test_a_limit_on_the_page_exists_and_has_the_value_it_is_said_to_have(name, value, consequence):
    assert current_value(name) == (float(value) if "." in value else int(value))
    assert consequence


def test_the_page_has_every_row_it_seems_to_have():
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.read_text().splitlines()) > 30


@pytest.mark.parametrize("module", MODULES)
def test_every_limit_of_the_code_is_on_the_page(module):
    names = [name for name in vars(importlib.import_module(f"flowstone.{module}")) if re.search(r"^[A-Z].*_MAX", name)]
    on_page = {row[0].rpartition(".")[2] for row in ROWS}
    assert {name for name in names if name not in NOT_LIMITS} <= on_page
