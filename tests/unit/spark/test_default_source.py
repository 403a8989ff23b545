from __future__ import annotations

import pyspark
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from flowstone.arrow.schema import schema as arrow_schema
from pyspark_flowstone import DefaultSource
from pyspark_flowstone.schema import spark_schema

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@pytest.mark.parametrize(
    "use",
    [
        lambda source: source.schema(),
        lambda source: source.reader(StructType()),
        lambda source: source.streamReader(StructType()),
        lambda source: source.writer(StructType(), False),
        lambda source: source.streamWriter(StructType(), False),
    ],
)
def test_pyspark_before_4_2_is_refused_in_one_sentence(monkeypatch, use):
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(RuntimeError, match=r"the format flowstone needs PySpark 4.2 or newer, and this is 4.1.2"):
        use(DefaultSource(OPTIONS))


def test_a_preview_of_a_new_pyspark_will_do(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "5.0.0.dev1")
    assert DefaultSource(OPTIONS).schema() == spark_schema(COLUMNS[:-1])


def test_arrow_batches_have_the_schema_that_spark_makes_of_its_own():
    assert to_arrow_schema(spark_schema(COLUMNS), timezone="UTC").equals(arrow_schema(COLUMNS))
