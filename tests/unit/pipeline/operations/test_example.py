"""`new`: the example of both forms is the same pipeline, and nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.pipeline import PipelineError
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.operations.example import write_example


def test_both_forms_declare_the_same(tmp_path: Path) -> None:
    models = []
    for name, is_yaml in (("python", False), ("yaml", True)):
        files = write_example(tmp_path / name / "shop", is_yaml=is_yaml)
        assert all(each.read_text(encoding="utf-8") for each in files)
        models.append(load(tmp_path / name / "shop"))
    one, other = models
    assert (one.name, one.sources, one.sinks, one.cases) == (other.name, other.sources, other.sinks, other.cases)
    assert [each.expectations for each in one.steps] == [each.expectations for each in other.steps]


def test_a_directory_with_files_and_a_bad_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PipelineError, match="is not empty; name a new directory"):
        write_example(tmp_path, is_yaml=False)
    with pytest.raises(PipelineError, match="the directory's name becomes the pipeline's"):
        write_example(tmp_path / "a b", is_yaml=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
