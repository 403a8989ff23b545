from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.cli.up import settings
from flowstone.config import known_broker_names, parse_broker_config
from flowstone.errors import ConfigError


def test_a_flag_beats_the_environment_and_the_environment_a_file() -> None:
    merged = settings.merge(
        (
            {"num.partitions": "1", "node.id": "1", "fetch.max.bytes": "5000"},
            {"num.partitions": "2", "node.id": "2"},
            {"num.partitions": "3"},
        )
    )
    assert merged == {"num.partitions": "3", "node.id": "2", "fetch.max.bytes": "5000"}


def test_a_later_source_wins_whatever_it_calls_the_setting() -> None:
    merged = settings.merge(({"log.retention.ms": "1000"}, {"log.retention.hours": "1"}))
    assert parse_broker_config(merged)[1]["retention.ms"] == "3600000"


def test_a_later_source_wins_over_an_older_name_too() -> None:
    merged = settings.merge(({"broker.id": "1"}, {"node.id": "2"}, {"broker.id": "3"}))
    assert parse_broker_config(merged)[0].node_id == 3


def test_every_known_setting_has_a_variable_of_its_own() -> None:
    names = known_broker_names()
    assert len({settings.variable_name(name) for name in names}) == len(names)


def test_variables_name_settings_and_others_are_left_alone() -> None:
    environment = {"FLOWSTONE_SET_LOG_RETENTION_MS": "5", "FLOWSTONE_BOOTSTRAP": "x", "PATH": "/bin"}
    assert settings.read_environment(environment) == {"log.retention.ms": "5"}


def test_an_unknown_variable_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean FLOWSTONE_SET_LOG_RETENTION_MS"):
        settings.read_environment({"FLOWSTONE_SET_LOG_RETENTON_MS": "5"})


def test_an_unknown_setting_of_a_flag_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"--set num\.partition: unknown setting .* did you mean num\.partitions"):
        settings.read_assignments(["num.partition=3"])


def test_a_flag_without_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected --set name=value"):
        settings.read_assignments(["num.partitions"])


def test_an_unknown_setting_of_a_file_is_refused_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "broker.properties"
    file.write_text("process.role=x\n")
    with pytest.raises(
        ConfigError, match=r"broker\.properties: unknown setting process\.role; did you mean process\.roles"
    ):
        settings.read_file(str(file))


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "broker.properties"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"configuration file .*broker\.properties"):
        settings.read_file(str(file))


def test_bare_addresses_get_the_default_name() -> None:
    assert settings.read_addresses(["127.0.0.1:0"], ["example.org:9092"]) == {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "PLAINTEXT://example.org:9092",
    }


def test_an_advertised_address_takes_the_only_listeners_name() -> None:
    values = settings.read_addresses(["INSIDE://127.0.0.1:0"], ["example.org:9092"])
    assert values["advertised.listeners"] == "INSIDE://example.org:9092"


@pytest.mark.parametrize(
    ("listen", "advertise", "sentence"),
    [
        (["a:1", "b:2"], [], "two listeners are named PLAINTEXT"),
        (["A://a:1", "B://b:2"], ["c:3"], "name the listener"),
    ],
)
def test_ambiguous_addresses_are_refused(listen: list[str], advertise: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings.read_addresses(listen, advertise)
