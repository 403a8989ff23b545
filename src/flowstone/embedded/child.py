"""The process of a broker in process mode, `python -m flowstone.embedded.child`; `process_host` starts it.

It reads its settings as one line of JSON from standard input and answers with one line of JSON: ready, or the reason
why it cannot start. It runs until SIGTERM, or until standard input ends because its parent process has ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from flowstone.app import App
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.loops import new_event_loop


def main() -> int:
    values = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            runner.run(_serve(values))
        except (ConfigError, StartupError) as error:
            _tell(error=str(error))
            return 1
    return 0


async def _serve(values: dict[str, str]) -> None:
    app = App(values)
    await app.start()
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    loop.add_reader(sys.stdin.fileno(), ending.set)  # nothing more is written to it: it becomes readable at its end
    _tell(http_address=app.http_address)
    await ending.wait()
    loop.remove_reader(sys.stdin.fileno())
    await app.stop()


def _tell(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.exit(main())
