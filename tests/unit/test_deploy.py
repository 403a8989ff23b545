"""The files under deploy/ name settings that exist, with values that parse. No container is run here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowstone.broker.network.listeners import parse_listeners
from flowstone.cli.up.settings import ENVIRONMENT_PREFIX, read_environment, read_file
from flowstone.config import BrokerConfig, parse_broker_config

DEPLOY = Path(__file__).parents[2] / "deploy"
VARIABLE = re.compile(rf'({ENVIRONMENT_PREFIX}\w+)[:=] ?"?([^"\s\\]+)')
IMAGE = dict(VARIABLE.findall("\n".join(re.findall(r"^ENV .*\n(?: .*\n)*", (DEPLOY / "Dockerfile").read_text(), re.M))))
COMPOSE = (DEPLOY / "compose.yaml").read_text().partition("\nnetworks:")[0]
# What stands before the services holds for every broker.
SHARED, *SERVICES = re.split(r"^  (?=broker-\d:$)", COMPOSE, flags=re.MULTILINE)


def config_of(service: str) -> BrokerConfig:
    environment = {**IMAGE, **dict(VARIABLE.findall(SHARED)), **dict(VARIABLE.findall(service))}
    return parse_broker_config(read_environment(environment))[0]


def test_the_image_sets_what_exists() -> None:
    assert read_environment(IMAGE).keys() == {"log.dirs", "listeners", "listeners.insecure.enable", "http.listener"}


def test_the_brokers_of_the_compose_file_can_start_and_reach_each_other() -> None:
    configs = [config_of(service) for service in SERVICES]
    assert [config.node_id for config in configs] == [1, 2, 3]
    assert len({config.broker_rack for config in configs}) == 3
    assert {config.zookeeper_connect for config in configs} == {"zookeeper:2181"}
    told = set()
    for number, config in enumerate(configs, 1):
        _, advertised = parse_listeners(config)
        between = advertised[config.inter_broker_listener_name]
        assert (between.host, between.port) == (f"broker-{number}", 19092)
        told.add(advertised["EXTERNAL"].port)
    assert told == {9092, 9093, 9094}


def test_the_published_ports_are_those_that_clients_are_told() -> None:
    for service in SERVICES:
        _, advertised = parse_listeners(config_of(service))
        assert f'"127.0.0.1:{advertised["EXTERNAL"].port}:9092"' in service


def test_the_services_settings_are_settings() -> None:
    values = read_file(str(DEPLOY / "flowstone.properties"))
    config, topic_defaults = parse_broker_config(values)
    assert parse_listeners(config)[0][0].port == 9092
    assert topic_defaults == {"min.insync.replicas": "2"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = tmp_path / "flowstone.service"
    unit.write_text((DEPLOY / "flowstone.service").read_text().replace("/opt/flowstone/bin/flowstone", sys.executable))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in result.stderr.splitlines() if "flowstone.service" in line]
    assert complaints == []
