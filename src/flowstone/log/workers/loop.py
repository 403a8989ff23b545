"""The loop of a worker process: a line of JSON in, a line of JSON out, one after the other.

The process exits as soon as its input ends: after a broker was killed, no old worker may write into its directories
when it is started again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from flowstone.ports.background import set_background_priority


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    set_background_priority()
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    try:
        while True:
            print(json.dumps(answer(json.loads(lines.get()))), flush=True)
    except BrokenPipeError:
        os._exit(0)  # the broker is gone; a normal exit would try to write the unsent answers


def _read_lines(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # whatever is still running has no caller any more
