"""ARCHITECTURE.md names files that exist, and its diagram and file map name every package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE_MAP = PAGE.partition("## File map")[2].partition("Imports go down only")[0]
ROWS = [line for line in FILE_MAP.splitlines() if line.startswith("|")][2:]
TREES = (ROOT / "src/flowstone", ROOT / "src", ROOT)
_PATH = re.compile(r"`([\w./*<>-]+(?:\.(?:py|c|toml|txt|md)|/))`")


def missing_paths(text: str) -> Iterator[str]:
    """Yield each path in `text` that leads to no file.

    A path is relative to the package or the project, or to a directory that the text has named before.
    """
    directories: list[Path] = []
    for name in _PATH.findall(text):
        places = [*TREES, *directories] if "/" in name else [TREES[0], *directories]
        pattern = re.sub(r"<\w+>", "*", name.rstrip("/"))
        found = [path for place in places for path in place.glob(pattern)]
        if not found:
            yield name
        directories += [path if path.is_dir() else path.parent for path in found]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_every_path_in_a_row_of_the_file_map_exists(row: str) -> None:
    assert not list(missing_paths(row))


def test_every_path_with_a_directory_in_the_text_exists() -> None:
    outside = PAGE.replace(FILE_MAP, "")
    assert not [name for name in missing_paths(outside) if "/" in name]


@pytest.mark.parametrize("path", ["`log/gone.py`", "`log/manager.py`, `gone.py`", "`cli/gone/`"])
def test_a_path_that_does_not_exist_is_found(path: str) -> None:
    assert list(missing_paths(path))


def test_the_page_names_every_package() -> None:
    packages = [
        path.parent.relative_to(ROOT / "src/flowstone") for path in (ROOT / "src/flowstone").glob("*/*/__init__.py")
    ]
    assert not [each.as_posix() for each in packages if each.as_posix() not in PAGE and f"{each.name}/" not in PAGE]
