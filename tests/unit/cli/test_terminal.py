"""What a person sees on a screen: tables that fit, bars that go away, and Ctrl-C."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.terminal import Terminal

Call = Callable[..., str]
Prepare = Callable[..., None]
OpenTerminal = Callable[..., Terminal]

RECORDS = 20_000


def test_a_table_that_does_not_fit_is_told_line_by_line(terminal: OpenTerminal, prepare: Prepare) -> None:
    prepare("narrow", partitions=2)
    screen = terminal("topic", "describe", "narrow", columns=40)
    assert screen.end() == 0
    assert screen.text.splitlines()[:7] == [
        "topic narrow: 2 partitions",
        "partition     0",
        "first offset  0",
        "next offset   0",
        "leader        1",
        "replicas      1",
        "in-sync       1",
    ]


def test_a_bar_shows_how_far_a_file_is_and_leaves_only_the_count(
    terminal: OpenTerminal, prepare: Prepare, tmp_path: Path
) -> None:
    prepare("watched")
    (tmp_path / "x.jsonl").write_text('{"a":1}\n' * RECORDS)
    screen = terminal("produce", "watched", "--file", "x.jsonl", columns=60)
    assert screen.end() == 0
    assert b"x.jsonl" in screen.seen
    assert b"%" in screen.seen
    assert screen.text == f"stored {RECORDS} records"


def test_without_a_terminal_there_is_no_bar(call: Call, prepare: Prepare, tmp_path: Path) -> None:
    prepare("unwatched")
    (tmp_path / "x.jsonl").write_text('{"a":1}\n' * 10)
    assert call("produce", "unwatched", "--file", tmp_path / "x.jsonl") == "stored 10 records\n"


def test_ctrl_c_ends_typing_as_ctrl_d_does(terminal: OpenTerminal, call: Call, prepare: Prepare) -> None:
    prepare("typed")
    screen = terminal("produce", "typed")
    screen.type("one\ntwo\n")
    screen.wait_for("two\r\n")
    # What is echoed may not be read yet: an interrupt throws away what waits in the terminal.
    call("consume", "typed", "--follow", "--from-beginning", "--max", 2)
    screen.type("\x03")
    assert screen.end() == 0
    assert screen.text.endswith("stored 2 records")


def test_ctrl_c_in_a_file_says_how_many_were_stored(
    terminal: OpenTerminal, call: Call, prepare: Prepare, tmp_path: Path
) -> None:
    prepare("interrupted")
    subprocess.run(["mkfifo", tmp_path / "x.jsonl"], check=True)
    screen = terminal("produce", "interrupted", "--file", "x.jsonl")
    with open(tmp_path / "x.jsonl", "w") as writer:
        writer.write('{"a":1}\n' * 100)
        writer.flush()
        call("consume", "interrupted", "--follow", "--from-beginning", "--max", 100)
        screen.type("\x03")
        assert screen.end() == 130
    assert screen.text.endswith("stored 100 records; interrupted before the end of x.jsonl")


def test_ctrl_c_ends_following_without_a_word(terminal: OpenTerminal, prepare: Prepare) -> None:
    prepare("followed-on-screen", (None, "old", 1000))
    screen = terminal("consume", "followed-on-screen", "--follow", "--from-beginning")
    screen.wait_for("old")
    screen.type("\x03")
    assert screen.end() == 130
    assert screen.text.removesuffix("^C").rstrip() == "old"
