import errno
import os
import sys
import threading
from pathlib import Path

import pytest

from flowstone.ports import system_files as files_module
from flowstone.ports.files import IOVECS_MAX, File, Files
from flowstone.ports.page_cache import EVICT_BYTES, cached_pages, evict
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.ports.system_files import PROBE_STRIDE_BYTES, SystemFiles


@pytest.fixture(params=["system", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    """Both forms of the port behave alike; the folder is theirs to use."""
    if request.param == "system":
        return SystemFiles(), str(tmp_path)
    simulated = SimulatedFiles()
    simulated.make_directory("/folder")
    return simulated, "/folder"


def a_file(files: Files, folder: str, data: bytes = b"") -> File:
    file = files.open(f"{folder}/file", create=True)
    file.write(0, [data])
    return file


def test_what_is_written_is_read_back_at_any_position(disk: tuple[Files, str]) -> None:
    file = a_file(*disk, b"0123456789")
    file.write(4, [b"ab", memoryview(b"cd")])
    assert file.read(0, 100) == b"0123abcd89"
    assert file.read(3, 4) == b"3abc"
    assert file.read(10, 5) == b""
    assert file.size() == 10


def test_more_buffers_than_one_call_takes_are_written_in_order(disk: tuple[Files, str]) -> None:
    file = a_file(*disk)
    buffers = [bytes([number % 256]) * 3 for number in range(2 * IOVECS_MAX + 7)]
    assert file.write(0, buffers) == 3 * len(buffers)
    assert file.read(0, 1 << 20) == b"".join(buffers)


def test_a_cached_read_gives_what_there_is_at_the_end_of_the_file(disk: tuple[Files, str]) -> None:
    file = a_file(*disk, b"0123456789")
    assert file.read_cached(8, 100) == b"89"
    assert file.is_cached(0, 10)


def test_truncating_makes_a_file_shorter_or_longer(disk: tuple[Files, str]) -> None:
    file = a_file(*disk, b"0123456789")
    file.truncate(4)
    file.truncate(6)
    assert file.read(0, 100) == b"0123\0\0"


def test_replacing_leaves_nothing_else_behind(disk: tuple[Files, str]) -> None:
    files, folder = disk
    files.replace(f"{folder}/a", b"one")
    files.replace(f"{folder}/a", b"two")
    assert files.read(f"{folder}/a") == b"two"
    assert files.names(folder) == ["a"]


def test_directories_are_made_with_their_parents_and_removed_with_their_contents(disk: tuple[Files, str]) -> None:
    files, folder = disk
    files.make_directory(f"{folder}/a/b")
    files.replace(f"{folder}/a/b/file", b"x")
    assert files.is_directory(f"{folder}/a/b")
    files.remove_tree(f"{folder}/a")
    assert not files.exists(f"{folder}/a")


def test_a_lock_is_exclusive_until_it_is_released(disk: tuple[Files, str]) -> None:
    files, folder = disk
    lock = files.lock(f"{folder}/.lock")
    with pytest.raises(BlockingIOError):
        files.lock(f"{folder}/.lock")
    lock.release()
    files.lock(f"{folder}/.lock").release()


def test_a_missing_file_is_not_made_unless_asked_for(disk: tuple[Files, str]) -> None:
    files, folder = disk
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/missing")


def evicted(folder: str, size_bytes: int) -> File:
    file = a_file(SystemFiles(), folder, os.urandom(size_bytes))
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def test_bytes_that_are_not_in_the_page_cache_are_known_to_be_missing(tmp_path: Path) -> None:
    file = evicted(str(tmp_path), 4 << 20)
    if file.is_cached(0, 4 << 20):
        pytest.skip("this file system keeps its pages when asked to drop them")
    assert file.read_cached(1 << 20, 100) is None
    file.read(1 << 20, 1 << 20)
    assert file.is_cached(1 << 20, 1 << 20)
    assert file.read_cached(1 << 20, 100) is not None


def test_sending_what_is_cached_brings_in_nothing_else(tmp_path: Path) -> None:
    """The system would read ahead for whoever sends, and on the loop."""
    file = evicted(str(tmp_path), 8 << 20)
    if file.is_cached(0, 8 << 20):
        pytest.skip("this file system keeps its pages when asked to drop them")
    for at in range(0, 1 << 20, 128 << 10):
        file.read(at, 128 << 10)
    assert file.is_cached(0, 1 << 20)
    with open(os.devnull, "wb") as nowhere:
        assert os.sendfile(nowhere.fileno(), file.fileno(), 0, 1 << 20) == 1 << 20
    assert cached_pages(file.fileno(), 1 << 20, 7 << 20) in (0, None)


def test_a_file_that_will_be_removed_can_leave_the_page_cache_before(tmp_path: Path) -> None:
    file = evicted(str(tmp_path), 3 * EVICT_BYTES)
    if file.is_cached(0, 3 * EVICT_BYTES):
        pytest.skip("this file system keeps its pages when asked to drop them")
    file.read(0, 3 * EVICT_BYTES)
    evict(file.path)
    assert not any(file.is_cached(at, EVICT_BYTES) for at in range(0, 3 * EVICT_BYTES, EVICT_BYTES))
    evict(str(tmp_path / "not there"))


def test_without_the_system_call_residency_is_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "cached_pages", lambda *_: None)
    file = evicted(str(tmp_path), 4 * PROBE_STRIDE_BYTES)
    if file.is_cached(0, 4 * PROBE_STRIDE_BYTES):
        pytest.skip("this file system keeps its pages when asked to drop them")
    file.read(0, 4 * PROBE_STRIDE_BYTES)
    assert file.is_cached(0, 4 * PROBE_STRIDE_BYTES)


def test_a_power_loss_takes_what_was_not_synced() -> None:
    files = SimulatedFiles()
    files.make_directory("/d")
    kept = files.open("/d/kept", create=True)
    kept.write(0, [b"durable"])
    kept.sync()
    files.sync_directory("/d")
    kept.write(7, [b" and lost"])
    files.open("/d/unnamed", create=True).sync()
    files.lose_power()
    assert files.names("/d") == ["kept"]
    assert files.read("/d/kept") == b"durable"


def test_a_simulated_failure_comes_once() -> None:
    files = SimulatedFiles()
    file = files.open("/f", create=True)
    files.fail_next("sync", errno.EIO)
    with pytest.raises(OSError, match="simulated"):
        file.sync()
    file.sync()


def test_a_stamp_changes_with_a_files_bytes_and_with_a_directorys_names(disk: tuple[Files, str]) -> None:
    files, folder = disk
    file = a_file(files, folder, b"before")
    stamps = files.stamp(f"{folder}/file"), files.stamp(folder)
    assert (files.stamp(f"{folder}/file"), files.stamp(folder)) == stamps
    assert stamps[0].size_bytes == 6
    file.write(6, [b" and after"])
    files.open(f"{folder}/another", create=True)
    assert files.stamp(f"{folder}/file") != stamps[0]
    assert files.stamp(folder).inode == stamps[1].inode
    with pytest.raises(FileNotFoundError):
        files.stamp(f"{folder}/nothing")


def test_what_takes_a_files_place_has_another_stamp(disk: tuple[Files, str]) -> None:
    files, folder = disk
    a_file(files, folder, b"same")
    stamp = files.stamp(f"{folder}/file")
    files.replace(f"{folder}/file", b"same")
    assert files.stamp(f"{folder}/file") != stamp


def test_simulated_links_are_counted_while_another_thread_adds_files() -> None:
    files, ended = SimulatedFiles(), threading.Event()
    files.open("/first", create=True)
    for number in range(1000):
        files.open(f"/{number}", create=True)

    def add_and_remove() -> None:
        while not ended.is_set():
            files.open("/second", create=True)
            files.remove("/second")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=add_and_remove)
    other.start()
    try:
        assert {files.link_count("/first") for _ in range(300)} == {1}
    finally:
        ended.set()
        other.join()
        sys.setswitchinterval(before)
