"""Compares the table of Kafka's settings with Kafka itself: names, types, defaults, bounds, and what changes live."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.client_suites.suite import CheckFailed, Server, Suite, Unavailable, run
from scripts.fetch_kafka import FetchError, java_command, kafka_classpath

from flowstone.config import SETTINGS_WITHOUT_EFFECT, TOPIC_SETTINGS, Kind, Setting, is_known_broker_name

PROGRAM = Path(__file__).with_name("KafkaSettings.java")
_RANGE = re.compile(r"\[(?P<low>-?[\d.]+)?,?(?:\.\.\.,?)?(?P<high>-?[\d.]+)?\]")


@dataclass(frozen=True)
class KafkaSetting:
    resource: str
    name: str
    kind: str
    default: str
    allowed: str
    is_dynamic: str
    is_internal: str


def run_suite(suite: Suite, server: Server) -> None:
    try:
        told = run([java_command(), "-cp", kafka_classpath(), str(PROGRAM)])
    except FetchError as error:
        raise Unavailable(str(error)) from error
    settings = [KafkaSetting(*line.split("\t")) for line in told.splitlines()]
    suite.check("every setting of a broker is known", partial(_check_known, settings))
    suite.check("every setting of a topic is known", partial(_check_topics, settings))
    suite.check("settings without effect have Kafka's types, defaults and bounds", partial(_check_facts, settings))


def _check_known(settings: list[KafkaSetting]) -> None:
    _refuse([each.name for each in settings if each.resource == "broker" and not is_known_broker_name(each.name)])


def _check_topics(settings: list[KafkaSetting]) -> None:
    topics = [each for each in settings if each.resource == "topic"]
    _refuse([each.name for each in topics if each.name not in TOPIC_SETTINGS])
    _refuse([each.name for each in topics if TOPIC_SETTINGS[each.name].kind.name != each.kind])


def _check_facts(settings: list[KafkaSetting]) -> None:
    brokers = {each.name: each for each in settings if each.resource == "broker"}
    _refuse(sorted(set(SETTINGS_WITHOUT_EFFECT) - set(brokers)))
    _refuse([name for name, own in SETTINGS_WITHOUT_EFFECT.items() if _facts(own) != _kafka_facts(brokers[name], own)])


def _facts(own: Setting) -> tuple[object, ...]:
    default = "null" if own.default is None else own.format(own.default)
    return own.kind.name, default, own.low, own.high, not own.read_only, own.is_hidden


def _kafka_facts(kafka: KafkaSetting, own: Setting) -> tuple[object, ...]:
    low = high = None
    found = _RANGE.fullmatch(kafka.allowed)
    if found is not None and own.kind is not Kind.LIST:
        low, high = (float(text) if text else None for text in found.group("low", "high"))
    return kafka.kind, kafka.default, low, high, kafka.is_dynamic == "true", kafka.is_internal == "true"


def _refuse(names: list[str]) -> None:
    if names:
        raise CheckFailed(", ".join(names))
