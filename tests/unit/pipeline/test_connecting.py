"""Which address and properties file a pipeline uses, and that nothing shows the secrets of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.client.security import SecuredBootstrap, security_of
from flowstone.pipeline import Pipeline, PipelineError, json, topic
from flowstone.pipeline.connecting import connected, librdkafka_options, spark_options
from flowstone.pipeline.model import PipelineModel

LOGIN = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={user}\nsasl.password=canary-secret\n"


def declared(directory: Path, config: str = "") -> PipelineModel:
    pipeline = Pipeline("shop", bootstrap="broker:9092", config=config)
    pipeline.source("orders", topic("orders", value=json("id string")))
    pipeline.sink("out", "orders", topic("out"))
    return pipeline.model(directory)


def test_a_declared_file_is_found_beside_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(LOGIN.format(user="declared"))
    model = connected(declared(tmp_path, "client.properties"))
    assert model.bootstrap == SecuredBootstrap("broker:9092", security_of(model.bootstrap))
    assert security_of(model.bootstrap).username == "declared"
    expected = {"kafka.bootstrap.servers": "broker:9092", "configFile": f"{tmp_path}/client.properties"}
    assert spark_options(model) == expected
    assert type(spark_options(model)["kafka.bootstrap.servers"]) is str
    assert librdkafka_options(model)["sasl.password"] == "canary-secret"


def test_what_is_given_overrides_what_is_declared(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(LOGIN.format(user="declared"))
    given = tmp_path / "given.properties"
    given.write_text(LOGIN.format(user="given"))
    model = connected(declared(tmp_path, "client.properties"), "other:9092", str(given))
    assert str(model.bootstrap) == "other:9092"
    assert security_of(model.bootstrap).username == "given"


def test_a_pipeline_without_a_file_connects_as_before(tmp_path: Path) -> None:
    model = connected(declared(tmp_path))
    assert spark_options(model) == {"kafka.bootstrap.servers": "broker:9092"}
    assert librdkafka_options(model) == {"bootstrap.servers": "broker:9092"}


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text(LOGIN.format(user="declared"))
    model = connected(declared(tmp_path, "client.properties"))
    assert "canary-secret" not in f"{model} {model!r} {model.bootstrap!r} {spark_options(model)}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the properties file"),
        ("=canary-secret", "a line is not name=value"),
        ("sasl.canary=canary-secret", "sasl.canary is not a property of this client"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=canary\nsasl.password=canary-secret", "sasl.mechanism"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_error_without_secrets(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / "client.properties").write_text(text)
    with pytest.raises(PipelineError, match=message) as caught:
        connected(declared(tmp_path, "client.properties"))
    assert "canary-secret" not in str(caught.value)
