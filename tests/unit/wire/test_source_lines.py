"""Generated source code: indentation and names."""

from __future__ import annotations

from flowstone.wire.source_lines import SourceLines


def test_lines_of_a_block_are_indented() -> None:
    lines = SourceLines()
    lines.emit("if a:")
    with lines.block():
        lines.emit("if b:")
        with lines.block():
            lines.emit("c")
    lines.emit("d")
    assert lines.text == "if a:\n    if b:\n        c\nd\n"


def test_names_with_one_stem_differ() -> None:
    lines = SourceLines()
    assert len({lines.name("x"), lines.name("x"), lines.name("y")}) == 3
