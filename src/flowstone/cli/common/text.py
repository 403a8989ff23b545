"""Text formatting shared by commands."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Return rows as aligned columns; if they are wider than `width`, each row as separate lines of name and value."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        lines = [(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) for row in (names, *rows)]
        return "\n".join("  ".join(line).rstrip() for line in lines)
    label = max(map(len, names))
    blocks = (zip(names, row, strict=True) for row in rows)
    return "\n\n".join("\n".join(f"{name.ljust(label)}  {cell}" for name, cell in block) for block in blocks)


def screen_width() -> int | None:
    """Return the width of the terminal; None if standard output is none, because a program may read it."""
    return shutil.get_terminal_size().columns if os.isatty(sys.stdout.fileno()) else None


def size_text(size_bytes: int) -> str:
    """Return a number of bytes with a unit, rounded to two digits."""
    for size, unit in _UNITS:
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"
