"""Files with several names: a branch and its source share them, and neither may write to one in place.

A file is written to, or cut, in place only under the last of its names; with others left it is copied first, and the
copy takes the name. Removing a shared file removes the name alone. So what one side does never shows in the other.
"""

from __future__ import annotations

from flowstone.ports.files import Files

TEMPORARY_SUFFIX = ".tmp"  # recovery removes such files if the copy was interrupted


def own_file(files: Files, path: str, size_bytes: int) -> bool:
    """Make a file safe to change in place: a shared one is replaced by a copy of its first bytes. Return whether it
    was.

    Waits for the disk. The copy's bytes are durable; its name is once the directory is synced, and until then a power
    loss brings back the shared file, as it was. Who has the file open must open it again.
    """
    if files.link_count(path) <= 1:
        return False
    files.copy(path, path + TEMPORARY_SUFFIX, size_bytes)
    files.open(path + TEMPORARY_SUFFIX).sync()
    files.rename(path + TEMPORARY_SUFFIX, path)
    return True
