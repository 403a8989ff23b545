"""The page of options names every option there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_flowstone import kafka_options
from pyspark_flowstone.options import NAMES, parse_options
from pyspark_flowstone.values import OptionError

PAGE = (Path(__file__).parents[3] / "docs" / "spark-options.md").read_text(encoding="utf-8")
FIRST_TABLE = PAGE.split("## Accepted without effect")[0]


def test_the_table_has_a_row_for_every_option():
    rows = re.findall(r"^\| `([^`]+)` \|", FIRST_TABLE, re.MULTILINE)
    assert sorted(rows) == sorted(NAMES)


def test_what_has_no_effect_is_said_to_have_none():
    told = set(re.findall(r"`([^`]+)`", PAGE.split("## Accepted without effect")[1].split("## Refused")[0]))
    assert set(kafka_options.IGNORED.values()) <= told
    for name in told:
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a", name: "1"})


@pytest.mark.parametrize("name", [f"kafka.{name}" for name in kafka_options.REFUSED])
def test_what_is_refused_is_said_to_be(name):
    assert f"`{name}`" in PAGE.split("## Refused")[1]
    with pytest.raises(OptionError, match=f"^{name}: "):
        parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "a", name: "1"})
