"""`flowstone up` whose wall clock is wrong by what a file says, in seconds; it may say otherwise at any time.

    python skewed_up.py FILE <arguments of flowstone up>

The monotonic clock stays right, as it does when somebody sets a machine's time.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from flowstone.cli.up.command import run_up

LOOK_S = 0.2


def skew(path: Path) -> None:
    offset_ns = 0
    time_ns = time.time_ns

    def watch() -> None:
        nonlocal offset_ns
        while True:
            with suppress(ValueError, FileNotFoundError):  # it may be half written
                offset_ns = int(path.read_text()) * 1_000_000_000
            time.sleep(LOOK_S)

    time.time_ns = lambda: time_ns() + offset_ns
    time.time = lambda: (time_ns() + offset_ns) / 1e9
    threading.Thread(target=watch, name="skew", daemon=True).start()


if __name__ == "__main__":
    skew(Path(sys.argv[1]))
    sys.exit(run_up(sys.argv[2:]))
