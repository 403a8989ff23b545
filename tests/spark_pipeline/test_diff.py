"""`diff`: seeded changes of the logic are found, and identical code shows no difference."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.pipeline import PipelineError
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.operations.diff import DEAD_LETTERS, diff
from flowstone.pipeline.operations.ranges import pin
from flowstone.pipeline.operations.revisions import version
from tests.spark_pipeline.commands import document
from tests.spark_pipeline.shop import Shop, order

LOGIC = """
    from pyspark.sql import functions as F

    @pipeline.step(expect=[expect("positive", "total > 0", otherwise="divert")])
    def checked(orders):
        return orders.where("id IS NOT NULL")

    @pipeline.step
    def priced(checked):
        return checked.withColumn("gross", F.round(F.col("total") * 1.2, 2))

    @pipeline.step
    def sums(priced):
        return priced.groupBy("customer").agg(F.sum("gross").alias("sum"))

    pipeline.sink("out", priced, topic("{name}-out", key="customer"))
    pipeline.sink("totals", sums, topic("{name}-totals", key="customer"))
"""
# What is changed, and the counts (added, removed, changed) of the sinks in which it must be seen.
CHANGES = {
    "a rate": (("* 1.2", "* 1.25"), {"out": (0, 0, 48), "totals": (0, 0, 5)}),
    "a filter": (("id IS NOT NULL", "id <> '00007'"), {"out": (0, 1, 0), "totals": (0, 0, 1)}),
    "an expectation": (("total > 0", "total > -5"), {"out": (2, 0, 0), DEAD_LETTERS: (0, 2, 0)}),
    "a column": (('.alias("sum"))', '.alias("sum"), F.count("*").alias("n"))'), {"totals": (0, 0, 5)}),
    "a key": (('"customer").agg', 'F.upper("customer").alias("customer")).agg'), {"totals": (5, 5, 0)}),
}

# Each comparison takes seconds; these have a row added, removed and changed, in sinks of all kinds.
IN_MAKE_TEST = ("an expectation", "a column", "a key")
SEEDED = [each for name, each in CHANGES.items() if name in IN_MAKE_TEST or "FLOWSTONE_SPARK_LONG" in os.environ]


@pytest.fixture
def fed(shop: Shop) -> Iterator[Shop]:
    shop.declare(LOGIC)
    shop.feed([*map(order, range(48)), order(48, -1.0), order(49, -2.0), b"junk"])
    return shop


def edited(shop: Shop, directory: Path, change: tuple[str, str]) -> Path:
    directory.mkdir()
    text = (shop.directory / "pipeline.py").read_text()
    assert change[0] in text
    (directory / "pipeline.py").write_text(text.replace(*change))
    return directory


def test_each_seeded_change_is_found_and_identical_code_is_equal(fed: Shop, tmp_path: Path) -> None:
    old = fed.load()
    ranges = pin(old, "earliest", "latest")
    same = diff(fed.spark, old, fed.load(), ranges)
    assert same.is_equal
    assert [(each.sink, each.rows_old) for each in same.sinks] == [("out", 48), ("totals", 5), (DEAD_LETTERS, 3)]
    before = set(fed._topics())
    for number, (change, expected) in enumerate(SEEDED):
        new = load(edited(fed, tmp_path / str(number), change))
        found = diff(fed.spark, old, new, ranges, 2)
        counts = {each.sink: (each.added, each.removed, each.changed) for each in found.sinks if not each.is_equal}
        if change[1] == "total > -5":
            counts.pop("totals")  # the sums of the customers of the two rows
        assert counts == expected
        assert all(each.examples for each in found.sinks if not each.is_equal)
    assert set(fed._topics()) == before, "nothing is written"


def test_old_code_is_a_revision_of_git(fed: Shop) -> None:
    git = ["git", "-C", str(fed.directory), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "pipeline.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    fed.declare(LOGIC.replace("* 1.2", "* 1.25"))
    found = document(fed, "diff", str(fed.directory), "--records", "2", "--exit-code", status=1)
    [out] = [each for each in found["sinks"] if each["sink"] == "out"]
    assert out["changed"] > 0
    assert out["examples"][0]["old"]["gross"] == 1.2
    assert out["examples"][0]["new"]["gross"] == 1.25
    with pytest.raises(PipelineError, match="git says"), version(fed.directory, "no-such-revision"):
        pass
