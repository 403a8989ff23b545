"""The loop of a worker process: a line of JSON in, a line of JSON out, one after the other.

The process ends when its input does, at once: a broker that was killed must not have somebody write into its
directories when it is started again.
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
        os._exit(0)  # nobody is left to hear it; what is left unsaid would be tried again at the end


def _read_lines(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)  # whatever is being done is for nobody
