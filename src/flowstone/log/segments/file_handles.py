"""Open log files, limited in number.

Owns the choice of which files stay open. A `Handle` names one file as long as its segment lives; `get` opens it when it
is needed. Beyond the limit, the handle that was not used for longest (second chance, so that a use costs one attribute)
drops its file. The descriptor closes when its last user, a slice being sent for instance, drops it.

Invariant: a pinned handle keeps its file. What was written but not synced is pinned, so that the descriptor that is
synced is one that was open while the bytes were written, and a write error in between cannot go unseen.
"""

from __future__ import annotations

from collections import OrderedDict

from flowstone.ports.files import File, Files


class Handle:
    __slots__ = ("_file", "_handles", "_used", "path", "pinned")

    def __init__(self, handles: FileHandles, path: str) -> None:
        self._handles = handles
        self.path = path
        self.pinned = False
        self._used = False
        self._file: File | None = None

    def get(self) -> File:
        self._used = True
        return self._file or self._handles.open(self, create=False)

    def create(self) -> File:
        """Open the file, creating it if it does not exist."""
        return self._file or self._handles.open(self, create=True)

    def create_own(self) -> File:
        """Open the file to be overwritten; if other names share it, as a branch's do, a new file replaces this name."""
        if self._handles.files.link_count(self.path) > 1:
            self.drop()
            self._handles.files.remove(self.path)
        return self.create()

    def drop(self) -> None:
        """Close the file, pinned or not."""
        self.pinned = False
        self._handles.forget(self)


class FileHandles:
    def __init__(self, files: Files, open_files_max: int) -> None:
        assert open_files_max > 0
        self.files = files
        self._open_files_max = open_files_max
        self._open: OrderedDict[Handle, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def handle(self, path: str) -> Handle:
        return Handle(self, path)

    def open(self, handle: Handle, *, create: bool) -> File:
        file = self.files.open(handle.path, create=create)
        handle._file = file
        self._open[handle] = None
        if len(self._open) > self._open_files_max:
            self._close_some()
        return file

    def forget(self, handle: Handle) -> None:
        handle._file = None
        self._open.pop(handle, None)

    def _close_some(self) -> None:
        """Close files that were not used lately. Pinned files are never closed, even if they exceed the limit."""
        for _ in range(2 * len(self._open)):
            handle, _nothing = self._open.popitem(last=False)
            if handle.pinned or handle._used:
                handle._used = False
                self._open[handle] = None
            else:
                handle._file = None
                return
