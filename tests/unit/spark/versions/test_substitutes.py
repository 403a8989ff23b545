"""What stands for the parts of PySpark that an older version lacks."""

from __future__ import annotations

import re
import runpy

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

from pyspark_flowstone import versions


def as_on(monkeypatch, version):
    monkeypatch.setattr(pyspark, "__version__", version)
    return runpy.run_path(versions.__file__)


def test_pyspark_before_4_0_is_told_in_one_sentence_what_to_do(monkeypatch):
    sentence = 'needs PySpark 4.0 or newer, and this is 3.5.8: install pyspark>=4.0, or use format("kafka")'
    with pytest.raises(ImportError, match=re.escape(sentence)):
        as_on(monkeypatch, "3.5.8")


def test_the_writer_of_a_stream_is_one_to_which_pyspark_4_0_hands_arrow_batches(monkeypatch):
    writer = as_on(monkeypatch, "4.0.5")["DataSourceStreamArrowWriter"]
    assert issubclass(writer, DataSourceArrowWriter)
    assert issubclass(writer, DataSourceStreamWriter)


@pytest.mark.skipif(not versions.TELLS_START, reason="an older PySpark has not what a newer one imports")
def test_a_preview_of_a_newer_pyspark_will_do(monkeypatch):
    assert as_on(monkeypatch, "5.0.0.dev1")["TELLS_START"]


def test_a_column_computed_from_others_replaces_them():
    rows = pa.record_batch({"key": ["a", "b"], "n": [1, 2], "argument": [10, 20]})
    found = list(versions._appending(lambda each: pa.array([value.as_py() + 1 for value in each]), 2)([rows]))
    assert [each.to_pydict() for each in found] == [{"key": ["a", "b"], "n": [1, 2], "result": [11, 21]}]
