from __future__ import annotations

import re

import pytest

from flowstone.broker.http.page import GET, Answer, Integer, Page, PageRequest, Text, table_rows
from flowstone.broker.http.pages.page_list import PAGES
from flowstone.broker.requests.permissions import NO_PERMISSIONS
from flowstone.errors import ApiError
from tests.support.pages import DOCS


async def answer(_: object, __: PageRequest) -> Answer:
    return Answer(b"")


PAGE = Page(
    GET,
    "/page",
    "a page",
    (),
    handler=answer,
    parameters=(Text("name", 5, is_required=True), Integer("number", 100)),
)


def test_parameters_are_parsed_as_declared() -> None:
    assert PAGE.parse({"name": "abcde", "number": "100"}) == {"name": "abcde", "number": 100}


def test_parameters_that_a_page_does_not_declare_are_ignored() -> None:
    assert PAGE.parse({"name": "a", "other": "x"}) == {"name": "a"}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({}, "the parameter name is missing"),
        ({"name": "abcdef"}, "name has more than 5 characters"),
        ({"name": "a", "number": "101"}, "number must be at most 100, not 101"),
        ({"name": "a", "number": "-1"}, "number must be a whole number, not '-1'"),
        ({"name": "a", "number": "²"}, "number must be a whole number"),
        ({"name": "a", "number": "9" * 5000}, "number must be a whole number"),
    ],
)
def test_a_parameter_out_of_bounds_is_refused(query: dict[str, str], reason: str) -> None:
    with pytest.raises(ApiError, match=re.escape(reason)):
        PAGE.parse(query)


def test_every_page_but_probes_declares_its_permissions() -> None:
    assert [page.path for page in PAGES if page.permissions == NO_PERMISSIONS] == ["/health", "/ready"]
    assert all(page.is_probe == (page.permissions == NO_PERMISSIONS) for page in PAGES)


def test_the_table_of_pages_is_up_to_date() -> None:
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    table = [line for line in page.splitlines() if line.startswith(("| GET", "| POST"))]
    assert table == list(table_rows(PAGES))
