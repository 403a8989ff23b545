"""Loading of `pipeline.py`: what a mistake in it is reported as, and that modules beside it can be imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.pipeline import PipelineError
from flowstone.pipeline.authoring.loading import load

HEAD = 'from flowstone.pipeline import *\npipeline = Pipeline("shop")\n'
SOURCE = 'pipeline.source("orders", topic("orders"))\n'
SINK = 'pipeline.sink("out", "orders", topic("out"))\n'


def script(directory: Path, text: str) -> Path:
    (directory / "pipeline.py").write_text(text)
    return directory


def test_modules_beside_the_script_are_its_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "settings_beside.py").write_text(f'TOPIC = "{name}"\n')
        source = 'pipeline.source("orders", topic(settings_beside.TOPIC))'
        script(directory, f"import settings_beside\n{HEAD}{source}\n{SINK}")
        assert load(directory).sources[0].origin.topics == (name,)
    (directory / "settings_beside.py").write_text('TOPIC = "changed"\n')
    assert load(directory).sources[0].origin.topics == ("changed",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", "pipeline.py:1: '(' was never closed"),
        ("\nimport no_such_module\n", "pipeline.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{HEAD}1/0\n", "pipeline.py:3: ZeroDivisionError: division by zero"),
        ("x = 1\n", "should have one Pipeline, as in `pipeline = Pipeline(...)`, and has none"),
        (f'{HEAD}other = Pipeline("b")\n', "and has 2 of them"),
        (f"{HEAD}", "the pipeline has no source"),
        (f"{HEAD}{SOURCE}", "the pipeline has neither a sink nor an expectation"),
        (
            f'{HEAD}{SOURCE}{SINK}expect("a", "b", otherwise="drp")\n',
            "pipeline.py:5: otherwise is 'drp', and can be keep",
        ),
        (f'{HEAD}pipeline.source("orders", 5)\n', "pipeline.py:3: source orders: 5 is not topic(...)"),
        (f"{HEAD}{SOURCE}{SOURCE}{SINK}", "pipeline.py:4: source orders: there is a source of this name already"),
        (
            f'{HEAD}pipeline.source("a-b", topic("x"))\n{SINK}',
            "pipeline.py:3: source 'a-b': a name has 1 to 100 letters",
        ),
        (f'{HEAD}pipeline.source("letters", topic("x"))\n{SINK}', "source letters: the name is reserved"),
        (f'{HEAD}pipeline.source("orders", topic("a b"))\n{SINK}', "source orders: 'a b' is not the name of a topic"),
        (f'{HEAD}pipeline.source("orders", topic("a", key="k"))\n', "key names a column of a sink"),
        (f'{HEAD}pipeline.source("orders", topic())\n{SINK}', "it names either topics or a pattern"),
        (f'{HEAD}pipeline.source("orders", topic(pattern="("))\n{SINK}', "pattern is not a regular expression"),
        (
            f'{HEAD}pipeline.source("orders", topic("a", starting="soon"))\n{SINK}',
            "starting is 'soon', and should be earl",
        ),
        (
            f'{HEAD}{SOURCE}pipeline.sink("out", "order", topic("out"))\n',
            "4: sink out: its input order is no source or s",
        ),
        (f'{HEAD}{SOURCE}pipeline.sink("out", "order", topic("out"))\n', "; did you mean orders?"),
        (
            f'{HEAD}{SOURCE}pipeline.sink("out", "orders", topic("out", starting="latest"))\n',
            "starting is for a topic that",
        ),
        (f'{HEAD}{SOURCE}pipeline.sink("out", "orders", topic("a", "b"))\n', "a sink writes one topic, not 2"),
        (f'{HEAD}{SOURCE}pipeline.sink("out", "orders", topic("shop-letters"))\n', "is the topic of the dead letters"),
        (f'{HEAD}{SOURCE}{SINK}pipeline.sql("s", "select 1")\n', "step s: its SQL reads no source or step"),
        (f'{HEAD}{SOURCE}{SINK}pipeline.sql("s", sql_file="no.sql")\n', "no.sql cannot be read"),
        (
            f'{HEAD}{SOURCE}{SINK}pipeline.sql("a", "select * from b")\npipeline.sql("b", "select * from a")\n',
            "pipeline.py:5: the steps a, b read each other in a circle",
        ),
        (
            f'{HEAD}{SOURCE}{SINK}pipeline.sql("a", "from orders", expect=[expect("x", "1"), expect("x", "2")])\n',
            "pipeline.py:5: step a: there are two expectations x",
        ),
        (
            f'{HEAD}{SOURCE}{SINK}pipeline.case("t", given={{"order": []}}, expected={{}})\n',
            "5: test t: there is no source order",
        ),
        (
            f'{HEAD}{SOURCE}{SINK}pipeline.case("t", given={{}}, expected={{}})\n',
            "test t: it expects nothing, so it cannot",
        ),
        ('from flowstone.pipeline import *\np = Pipeline("a b")\n', "name: 'a b' is not 1 to 100 letters"),
        (
            'from flowstone.pipeline import *\np = Pipeline("a", delivery="once")\n',
            "2: delivery is 'once', and can be ex",
        ),
        (f'from flowstone.pipeline import *\np = Pipeline("a", trigger=interval(0))\n{SOURCE}', "NameError"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        load(script(tmp_path, text))
    assert message in str(caught.value)


def test_a_directory_has_one_form(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"neither pipeline.py nor pipeline.yaml; `flowstone pipeline new`"):
        load(tmp_path)
    script(tmp_path, HEAD)
    (tmp_path / "pipeline.yaml").write_text("name: a")
    with pytest.raises(PipelineError, match=r"has both pipeline.py and pipeline.yaml"):
        load(tmp_path)
    with pytest.raises(PipelineError, match="there is no directory"):
        load(tmp_path / "none")
