"""File systems made to be broken: a loop-mounted ext4 that loses its power, and a tmpfs that is soon full.

They need root, and tools that are not everywhere: `require_mounts` skips the test elsewhere, with the reason. Nothing
here touches a file system it did not make: `lose_power` refuses to work on the one that holds `/`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

IMAGE_BYTES = 256 << 20
_FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
_NO_LOG_FLUSH = 2  # the journal's unwritten part is gone too, as when the power fails


def require_mounts(*tools: str) -> None:
    """Skips the test where file systems cannot be made and mounted."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a file system needs Linux and root")
    missing = [tool for tool in ("mount", "umount", *tools) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


class LoopExt4:
    """An ext4 in a file, mounted at `path`."""

    def __init__(self, directory: Path, size_bytes: int = IMAGE_BYTES) -> None:
        self._image = directory / "image"
        self.path = directory / "mount"
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def lose_power(self) -> None:
        """From now on nothing reaches the disk, and what had not reached it is gone; every call fails."""
        assert os.stat(self.path).st_dev != os.stat("/").st_dev, "this is not a file system of our own"
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def turn_read_only(self) -> None:
        """As after an error of the disk: every write and flush fails from now on, reads go on."""
        device = os.stat(self.path).st_dev
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("tested")

    def restore_power(self) -> None:
        """Mounts it again as the power loss left it. Nobody may have files of it open."""
        self.unmount()
        self.mount()


@contextmanager
def loop_ext4(directory: Path) -> Iterator[LoopExt4]:
    require_mounts("mkfs.ext4", "losetup")
    try:
        filesystem = LoopExt4(directory)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a loop device cannot be mounted here: {error.stderr}")
    try:
        yield filesystem
    finally:
        filesystem.unmount()


@contextmanager
def tmpfs(path: Path, size_bytes: int) -> Iterator[None]:
    require_mounts()
    path.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a tmpfs cannot be mounted here: {error.stderr}")
    try:
        yield
    finally:
        _run("umount", str(path))


def resize_tmpfs(path: Path, size_bytes: int) -> None:
    _run("mount", "-o", f"remount,size={size_bytes}", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
