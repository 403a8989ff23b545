"""Files with secrets: only their owner may read them, when they are written and when they are read."""

from __future__ import annotations

import os
import stat

SECRET_MODE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_secret(path: str, text: str) -> None:
    """Create a file that only its owner may read. Raises FileExistsError if there is one, and other OSErrors."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: str) -> str:
    """Return the text of the file. Raises PermissionError, with what to do, if others than its owner may use it."""
    with open(path, encoding="utf-8") as file:
        mode = os.fstat(file.fileno()).st_mode
        if mode & _OTHERS:
            raise PermissionError(f"{path} may be used by others than its owner: run `chmod 600 {path}`")
        return file.read()
