"""Reading and writing over an encrypted connection with a login, with the options of the Kafka connector."""

from __future__ import annotations

import contextlib
import io
from base64 import b64encode

import pytest
from pyspark.errors import PySparkException

from flowstone import Broker
from flowstone.client.brokers import Brokers
from flowstone.client.security import SecuredBootstrap
from flowstone.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse


@pytest.fixture(scope="module")
def secured():
    settings = {"delegation.token.secret.key": "a secret of the brokers"}
    with Broker(mode="process", security="sasl_tls", settings=settings) as broker:
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


def test_a_job_logs_in_with_a_delegation_token(spark, secured, capfd):
    """So no job needs the password of its owner."""
    brokers = Brokers(SecuredBootstrap(secured.bootstrap, secured._security.client), "test")
    token = brokers.ask_any(CreateDelegationTokenRequest(max_lifetime_ms=-1), CreateDelegationTokenResponse, 10.0)
    brokers.close()
    password = b64encode(token.hmac).decode()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    login = f'{module} required username="{token.token_id}" password="{password}" tokenauth="true";'
    options = {**options_of(secured), "kafka.sasl.jaas.config": login}
    rows = spark.range(100).selectExpr("cast(id as string) value")
    rows.write.mode("append").format("flowstone").options(**options, topic="written").save()
    frame = spark.read.format("flowstone").options(**options, subscribe="written").load()
    assert frame.count() >= 100
    assert password not in frame._jdf.queryExecution().toString()
    assert password not in "".join(capfd.readouterr())


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
