"""Pipelines on a broker that needs encryption and a login: every command works, and no secret is left anywhere."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flowstone import Broker
from flowstone.pipeline.state import STATE_TOPIC
from tests.spark_pipeline.commands import command, document, refusal
from tests.spark_pipeline.shop import HEAD, STEPS, Shop, order

WITH_FILE = HEAD.replace('bootstrap="{bootstrap}"', 'bootstrap="{bootstrap}", config="../client.properties"')


@pytest.fixture(scope="module")
def secured() -> Iterator[Broker]:
    with Broker(mode="process", security="sasl_tls", settings={"num.partitions": 2}) as broker:
        yield broker


@pytest.fixture
def shop(spark: SparkSession, secured: Broker, tmp_path: Path) -> Shop:
    made = Shop(spark, secured, tmp_path / "shop", f"shop-{uuid.uuid4().hex[:8]}")
    write_properties(tmp_path / "client.properties", secured.client_properties)
    made.declare(STEPS, head=WITH_FILE)
    return made


def write_properties(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def test_all_commands_use_the_declared_properties_file(shop: Shop, secured: Broker, capfd) -> None:
    directory = str(shop.directory)
    shop.feed([*map(order, range(20)), b"junk", order(20, -1.0)])
    printed = [command(shop, "check", directory), command(shop, "run", directory, "--once")]
    assert shop.rows() == [order(number) for number in range(20)]
    assert len(shop.out("letters")) == 2
    status = document(shop, "status", directory)
    assert status["queries"][0]["lag_records"] == 0
    assert len(command(shop, "letters", "list", directory, "--json").splitlines()) == 2
    printed += [command(shop, "plan", directory), command(shop, "letters", "retry", directory, "--all")]
    assert len(shop.out("letters")) == 4

    password = secured.client_properties["sasl.jaas.config"].partition('password="')[2].partition('"')[0]
    assert len(password) > 8
    output, errors = capfd.readouterr()
    assert password not in "".join([*printed, json.dumps(status), output, errors])
    assert all(password.encode() not in (each.value or b"") for each in secured.records(STATE_TOPIC))
    for each in shop.directory.rglob("*"):
        assert each.is_dir() or password.encode() not in each.read_bytes(), each


def test_a_file_on_the_command_line_overrides_the_declared_one(shop: Shop, tmp_path: Path) -> None:
    right, wrong = tmp_path / "client.properties", tmp_path / "wrong.properties"
    text = right.read_text()
    password = text.partition('password="')[2].partition('"')[0]
    wrong.write_text(text.replace(password, "canary-secret"))
    message = refusal(shop, "status", str(shop.directory), "--config", str(wrong))
    assert "refused the login" in message
    assert "canary-secret" not in message
    wrong.rename(right)
    (tmp_path / "good.properties").write_text(text)
    shop.feed([order(1)])
    command(shop, "run", str(shop.directory), "--once", "--config", str(tmp_path / "good.properties"))
    assert shop.rows() == [order(1)]
