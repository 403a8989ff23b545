"""`flowstone topic alter`: settings there and back, and partitions only with open eyes."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.cli.terminal import Terminal

Call = Callable[..., str]
Prepare = Callable[..., None]
OpenTerminal = Callable[..., Terminal]


def test_settings_are_set_and_unset(call: Call, prepare: Prepare) -> None:
    prepare("settings")
    altered = call("topic", "alter", "settings", "--set", "retention.ms=1000", "--set", "segment.ms=2000")
    assert altered == "altered settings: retention.ms=1000, segment.ms=2000\n"
    assert call("topic", "describe", "settings").splitlines()[-2:] == ["retention.ms=1000", "segment.ms=2000"]
    assert call("topic", "alter", "settings", "--unset", "retention.ms") == "altered settings: retention.ms unset\n"
    assert "retention.ms" not in call("topic", "describe", "settings")


def test_a_setting_without_effect_is_described_as_such(call: Call, prepare: Prepare) -> None:
    prepare("idle")
    call("topic", "alter", "idle", "--set", "retention.ms=1000", "--set", "local.retention.ms=1000")
    assert call("topic", "describe", "idle").splitlines()[-2:] == [
        "local.retention.ms=1000  (no effect: a setting of Kafka that this broker only stores)",
        "retention.ms=1000",
    ]


def test_a_topic_without_keys_grows_without_asking(call: Call, prepare: Prepare) -> None:
    prepare("keyless", (None, "x", 1000))
    assert call("topic", "alter", "keyless", "--partitions", 4) == "altered keyless: 4 partitions\n"
    assert call("topic", "describe", "keyless").startswith("topic keyless: 4 partitions\n")


def test_without_a_terminal_a_topic_with_keys_does_not_grow(call: Call, refused: Call, prepare: Prepare) -> None:
    prepare("keys", (None, "x", 1000), ("k", "x", 1000), (None, "x", 1000))
    told = refused("topic", "alter", "keys", "--partitions", 2, "--set", "retention.ms=1000")
    assert "records of keys have keys, and with 2 partitions instead of 1 most keys will move" in told
    assert told.endswith("; use --yes to confirm\n")
    lines = call("topic", "describe", "keys").splitlines()
    assert lines[0] == "topic keys: 1 partition"
    assert "retention.ms=1000" not in lines


def test_told_yes_a_topic_with_keys_grows(call: Call, prepare: Prepare) -> None:
    prepare("told", ("k", "x", 1000))
    assert call("topic", "alter", "told", "--partitions", 2, "--yes") == "altered told: 2 partitions\n"


def test_on_a_terminal_the_answer_decides(terminal: OpenTerminal, prepare: Prepare) -> None:
    prepare("asked", ("k", "x", 1000))
    screen = terminal("topic", "alter", "asked", "--partitions", "2")
    screen.wait_for("Go on? [y/N]")
    assert "most keys will move" in screen.text.replace("\n", " ")
    screen.type("n\n")
    assert screen.end() == 1
    assert screen.text.endswith("flowstone: nothing was changed")

    screen = terminal("topic", "alter", "asked", "--partitions", "2")
    screen.wait_for("Go on? [y/N]")
    screen.type("y\n")
    assert screen.end() == 0
    assert screen.text.endswith("altered asked: 2 partitions")


def test_fewer_partitions_are_refused(refused: Call, prepare: Prepare) -> None:
    prepare("shrunk", partitions=3)
    assert "partitions are only ever added" in refused("topic", "alter", "shrunk", "--partitions", 2)


def test_nothing_to_change_is_said(refused: Call) -> None:
    assert "give --partitions, --set or --unset" in refused("topic", "alter", "any")


def test_an_unknown_setting_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("unset")
    assert "retention.msx" in refused("topic", "alter", "unset", "--set", "retention.msx=1")


def test_an_unknown_setting_is_not_unset(call: Call, refused: Call, prepare: Prepare) -> None:
    prepare("misspelt")
    told = refused("topic", "alter", "misspelt", "--unset", "retention.msx", "--set", "segment.ms=2000")
    assert told == "flowstone: there is no topic setting retention.msx to unset; did you mean retention.ms?\n"
    assert "segment.ms" not in call("topic", "describe", "misspelt")
