"""The Grafana dashboard and the alerts of pipelines ask for metrics and labels that a broker really has."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition

from flowstone import Broker

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
METRIC = re.compile(r"\bflowstone_\w+")
# A metric with its matchers, and the labels by which its values are grouped.
MATCHED = re.compile(r"(flowstone_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? ", re.MULTILINE)
TIMEOUT_S = 20.0


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / "pipelines.json").read_text())
    return found


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> list[str]:
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    variables = [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return [*asked, *variables, *(each["expr"] for each in rules())]


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """The labels of each metric that a broker shows after a group has read a topic of dead letters, by name."""
    with Broker(mode="process", http=True) as broker:
        broker.create_topic("shop-letters")
        producer = Producer({**broker.client_config, "transactional.id": "shop", "log_level": 0})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("shop-letters", b"junk")
        producer.commit_transaction(TIMEOUT_S)
        consumer = Consumer({**broker.client_config, "group.id": "shop"})
        consumer.commit(offsets=[TopicPartition("shop-letters", 0, 0)], asynchronous=False)
        consumer.close()
        page = _with_groups(f"{broker.http}/metrics")
    found: dict[str, set[str]] = {}
    for name, matchers in SAMPLE.findall(page):
        found.setdefault(name, set()).update(re.findall(r"(\w+)=\"", matchers))
    for name in re.findall(r"^# TYPE (\w+)", page, re.MULTILINE):
        found.setdefault(name, set())
    return found


def _with_groups(url: str) -> str:
    """Return the metrics once the survey of groups has been made."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            page: str = answer.read().decode()
        if 'flowstone_group_lag_records{group="shop"' in page:
            return page
        time.sleep(0.1)
    raise AssertionError(page)


def test_every_metric_is_one_that_a_broker_shows(labels: dict[str, set[str]]) -> None:
    asked = {name for text in expressions() for name in METRIC.findall(text)}
    assert len(asked) >= 10
    assert asked - labels.keys() == set()


def test_every_label_is_one_of_its_metric(labels: dict[str, set[str]]) -> None:
    for text in expressions():
        for name, matchers in MATCHED.findall(text):
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= labels[name], text
        grouped = {each.strip() for names in GROUPED.findall(text) for each in names.split(",")}
        assert grouped <= set().union(*(labels[name] for name in METRIC.findall(text))), text


def test_panels_have_places_of_their_own_and_a_description() -> None:
    panels = dashboard()["panels"]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(panels)
    assert len({each["id"] for each in panels}) == len(panels)
    assert all(each["description"] and each["title"] for each in panels)


def test_every_alert_is_explained_in_the_documentation() -> None:
    page = (ROOT / "docs" / "pipeline-operations.md").read_text()
    assert [each["alert"] for each in rules() if f"`{each['alert']}`" not in page] == []
