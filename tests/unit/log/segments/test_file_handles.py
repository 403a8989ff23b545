from __future__ import annotations

from pathlib import Path

import pytest

from flowstone.log.segments.file_handles import FileHandles, Handle
from flowstone.ports.system_files import SystemFiles


@pytest.fixture
def handles(tmp_path: Path) -> FileHandles:
    return FileHandles(SystemFiles(), open_files_max=3)


def make(handles: FileHandles, folder: Path, count: int) -> list[Handle]:
    made = [handles.handle(str(folder / f"file-{number}")) for number in range(count)]
    for handle in made:
        handle.create()
    return made


def test_no_more_files_stay_open_than_allowed(handles: FileHandles, tmp_path: Path) -> None:
    make(handles, tmp_path, 10)
    assert len(handles) == 3


def test_a_file_that_is_in_use_outlives_its_place_among_the_open_ones(handles: FileHandles, tmp_path: Path) -> None:
    first = make(handles, tmp_path, 1)[0].get()
    first.write(0, [b"still here"])
    make(handles, tmp_path, 10)
    assert first.read(0, 10) == b"still here"


def test_a_pinned_file_is_never_let_go(handles: FileHandles, tmp_path: Path) -> None:
    pinned = make(handles, tmp_path, 1)[0]
    pinned.pinned = True
    file = pinned.get()
    make(handles, tmp_path, 10)
    assert pinned.get() is file


def test_a_used_file_is_let_go_after_unused_ones(handles: FileHandles, tmp_path: Path) -> None:
    used, *_others = make(handles, tmp_path, 3)
    file = used.get()
    handles.handle(str(tmp_path / "another")).create()
    assert used.get() is file


def test_a_file_that_was_let_go_opens_again(handles: FileHandles, tmp_path: Path) -> None:
    first, *_others = make(handles, tmp_path, 8)
    first.get().write(0, [b"x"])
    make(handles, tmp_path, 8)
    assert first.get().read(0, 1) == b"x"


def test_a_dropped_handle_lets_go_even_if_pinned(handles: FileHandles, tmp_path: Path) -> None:
    handle = make(handles, tmp_path, 1)[0]
    handle.pinned = True
    handle.drop()
    assert len(handles) == 0
