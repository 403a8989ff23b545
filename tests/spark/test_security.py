"""Reading and writing over an encrypted connection with a login, with the options of the Kafka connector."""

from __future__ import annotations

import contextlib
import io

import pytest
from pyspark.errors import PySparkException

from flowstone import Broker


@pytest.fixture(scope="module")
def secured():
    with Broker(mode="process", security="sasl_tls") as broker:
        broker.create_topic("read", partitions=2)
        broker.create_topic("written", partitions=2)
        yield broker


def options_of(broker):
    return {f"kafka.{name}": value for name, value in broker.client_properties.items()}


def test_a_topic_is_read_and_written(spark, secured, tmp_path):
    rows = spark.range(1000).selectExpr("cast(id as string) key", "cast(id as string) value")
    rows.write.mode("append").format("flowstone").options(**options_of(secured), topic="read").save()
    frame = spark.read.format("flowstone").options(**options_of(secured), subscribe="read").load()
    assert frame.count() == 1000
    stream = spark.readStream.format("flowstone").options(
        **options_of(secured), subscribe="read", startingOffsets="earliest", groupId="readers"
    )
    writer = stream.load().select("key", "value").writeStream.format("flowstone")
    query = (
        writer.options(**options_of(secured), topic="written", checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(secured.wait_for("written", 1000)) == 1000


def test_no_secret_is_in_a_plan_or_an_error(spark, secured, capfd):
    password = secured._security.password
    frame = spark.read.format("flowstone").options(**options_of(secured), subscribe="read").load()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(extended=True)
    plan = frame._jdf.queryExecution().toString() + printed.getvalue()
    assert password not in plan
    wrong = {**options_of(secured), "kafka.sasl.jaas.config": options_of(secured)["kafka.sasl.jaas.config"]}
    wrong["kafka.sasl.jaas.config"] = wrong["kafka.sasl.jaas.config"].replace(password, "canary-secret")
    with pytest.raises(PySparkException, match="refused the login") as caught:
        spark.read.format("flowstone").options(**wrong, subscribe="read").load()
    assert "canary-secret" not in str(caught.value)
    output, errors = capfd.readouterr()
    assert "canary-secret" not in output + errors
    assert password not in output + errors
