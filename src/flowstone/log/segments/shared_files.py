"""Files that have several names: what a branch and its source share, neither may write to in place.

A file is written to, or cut, in place only under the last of its names; with others left it is copied first, and the
copy takes the name. Removing a shared file removes the name alone. So what one side does never shows in the other.
"""

from __future__ import annotations

from flowstone.ports.files import Files

TEMPORARY_SUFFIX = ".tmp"  # what recovery removes, should we not come to an end


def own_file(files: Files, path: str, size_bytes: int) -> bool:
    """Makes the file safe to be changed in place: a shared one becomes a copy of its first bytes; whether it did.

    Waits for the disk. The copy's bytes are durable; its name is once the directory is synced, and until then a power
    loss brings back the shared file, as it was. Who has the file open must open it again.
    """
    if files.link_count(path) <= 1:
        return False
    files.copy(path, path + TEMPORARY_SUFFIX, size_bytes)
    files.open(path + TEMPORARY_SUFFIX).sync()
    files.rename(path + TEMPORARY_SUFFIX, path)
    return True
