"""The table of products in docs/clients.md: made of recorded results, and only of those of the cases as they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.ecosystem import digests, results
from tests.ecosystem.cases import PRODUCTS
from tests.ecosystem.digests import digest
from tests.ecosystem.product import Product
from tests.ecosystem.results import Result, table

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
KAFKAJS = PRODUCTS["kafkajs"]


def cells(product: Product, found: dict[str, Result]) -> list[str]:
    """Return the last two columns of the product's line."""
    line = table([product], {product.name: found}).splitlines()[-1]
    return [cell.strip() for cell in line.split("|")[4:6]]


def result(**changed: object) -> Result:
    given = {"case": digest(KAFKAJS), "version": KAFKAJS.version, "checks": ["a", "b"], "failure": None} | changed
    return Result(passed=len(given["checks"]), **given)


def test_the_table_of_the_page_is_that_of_the_recorded_results() -> None:
    page = PAGE.read_text()
    made = results.with_table(page, table(PRODUCTS.values(), results.read()))
    assert page == made, "write it anew: python -m tests.ecosystem.results docs/clients.md"


def test_every_recorded_result_is_of_a_product() -> None:
    assert results.read().keys() <= PRODUCTS.keys()


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({}, ["-", "-"]),
        ({"flowstone": result()}, ["2", "-"]),
        ({"flowstone": result(), "kafka": result(checks=["a"])}, ["2", "1"]),
        ({"flowstone": result(failure="not within 60 s")}, ["fails after 2", "-"]),
        ({"flowstone": result(case="another"), "kafka": result(version="0")}, ["-", "-"]),
    ],
)
def test_a_line_shows_only_results_of_the_case_and_version_as_they_are(
    found: dict[str, Result], shown: list[str]
) -> None:
    assert cells(KAFKAJS, found) == shown


def test_a_recorded_result_replaces_the_earlier_one_of_the_same_broker(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.record("kafkajs", "kafka", result(checks=["a"]), file)
    results.record("kafkajs", "flowstone", result(failure="no"), file)
    results.record("kafkajs", "flowstone", result(), file)
    assert results.read(file) == {"kafkajs": {"flowstone": result(), "kafka": result(checks=["a"])}}


def test_a_digest_covers_the_case_what_it_uses_and_its_program() -> None:
    reached = digests._reached("tests.ecosystem.cases.node_clients", "_run_kafkajs")
    wanted = {
        "program kafkajs.js",
        "tests.ecosystem.cases.node_clients._run_kafkajs",
        "tests.ecosystem.cases.node_clients.KAFKAJS_VERSION",
        "tests.ecosystem.cases.client_checks.check_client",
        "tests.ecosystem.cases.client_checks.COUNT",
    }
    assert wanted <= reached.keys()
    assert "program platformatic.mjs" not in reached


def test_arguments_of_a_case_are_part_of_its_digest() -> None:
    one, other = PRODUCTS["flink-incrementing"], PRODUCTS["flink-pooling"]
    assert isinstance(one.run, partial)
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("def run(case):\n    case.check(1)\n", "def run(case):\n    case.check(2)\n", False),
        ('def run(case):\n    """Check."""\n    a()\n', 'def run(case):\n    """Check all."""\n    a()\n', True),
        ("def run(case):\n    a()  # once\n", "def run(case):\n    a()  # one time\n", True),
        ("N = 1\n\ndef run(case):\n    a(N)\n", "N = 2\n\ndef run(case):\n    a(N)\n", False),
        ("N = 1\n\ndef run(case):\n    a()\n", "N = 2\n\ndef run(case):\n    a()\n", True),
        ("N = [i for i in 'a']\n\ndef run(i):\n    a(i)\n", "N = [i for i in 'b']\n\ndef run(i):\n    a(i)\n", True),
    ],
)
def test_words_do_not_count_in_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: str, other: str, is_same: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for name, text in (("one", one), ("other", other)):
        module = f"case_{name}_{abs(hash((one, other)))}"
        (tmp_path / f"{module}.py").write_text(text)
        found.append([digests._COMMENT.sub("", each) for each in digests._code(module, "run")])
    assert (found[0] == found[1]) is is_same
