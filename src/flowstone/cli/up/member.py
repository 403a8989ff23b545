"""One broker of `flowstone up --brokers N`: `python -m flowstone.cli.up.member`, started by `local_cluster`.

Reads its settings as one line of JSON from standard input, so that they are not visible on the command line. Answers
with one line of JSON: ready, or the reason why it cannot start. Runs until SIGTERM, or until standard input ends
because its parent process has ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from flowstone.cli.common.errors import EXIT_FAILURE
from flowstone.cli.up import log_output
from flowstone.cli.up.command import serve
from flowstone.errors import FlowstoneError
from flowstone.ports.background import request_short_slices
from flowstone.ports.loops import new_event_loop


def main() -> int:
    asked = json.loads(sys.stdin.readline())
    values: dict[str, str] = asked["values"]
    log_output.set_up_logging(asked["log_format"], asked["log_level"])
    _sign_log(f"broker-{values['node.id']}")
    request_short_slices()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(serve(values, as_json=True, default_http=asked["default_http"], with_input=True))
        except FlowstoneError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return EXIT_FAILURE


def _sign_log(name: str) -> None:
    """Add the broker's name to each log line, because all brokers of the cluster share standard error."""

    def sign(record: logging.LogRecord) -> bool:
        record.name = f"{name}.{record.name}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(sign)


if __name__ == "__main__":
    sys.exit(main())
