"""`flowstone up` that is killed at an exact write of dead letters or of share state, and maybe has a bug.

    python sabotaged_letters.py NUMBER:MOMENT[:BUG] <arguments of flowstone up>

Counted are the writes to the files of `__share_group_state` and of dead letter queues, from the start of the process.
Nothing in the broker knows of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from flowstone.broker.sharing.led_share_partition import LedSharePartition
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues, Sent
from flowstone.broker.sharing.letters.letter_writer import LetterWriter
from flowstone.cli.up.command import run_up
from flowstone.coordinator.share.records import LetterBatch
from flowstone.coordinator.share.shard import ShareShard
from flowstone.ports.system_files import SystemFile
from flowstone.types import Bytes

COUNTED = ("__share_group_state-", "dlq.")


def die_at(last: int, moment: str) -> None:
    """SIGKILL at the `last`-th counted write: before it, after it, or with half of it done; 0 is never."""
    original = SystemFile.write
    calls = itertools.count(1)

    def wrapped(self: SystemFile, position: int, buffers: list[Bytes]) -> int:
        is_counted = self.path.endswith(".log") and any(each in self.path for each in COUNTED)
        if not is_counted or next(calls) != last:
            return original(self, position, buffers)
        if moment != "before":
            data = b"".join(buffers)
            original(self, position, [data if moment == "after" else data[: len(data) // 2]])
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal is for the whole process: this thread must not go on
        raise AssertionError

    SystemFile.write = wrapped  # type: ignore[method-assign, assignment]


def store_nothing_before_the_copy() -> None:
    """Letters are sent without having been stored."""

    async def forget(self: LedSharePartition, letters: LetterBatch) -> None:
        return None

    LedSharePartition._store_letters = forget  # type: ignore[method-assign]


def repeat_with_another_producer() -> None:
    """A leader that finds an unfinished batch sends it as a producer of its own."""
    send: Callable[..., Any] = DeadLetterQueues.send

    async def anew(self: Any, source: Any, group_id: Any, settings: Any, batch: Any, *, is_repeated: bool) -> Any:
        batch = await self.with_new_producer(batch) if is_repeated else batch
        return await send(self, source, group_id, settings, batch, is_repeated=is_repeated)

    DeadLetterQueues.send = anew  # type: ignore[method-assign]


def archive_before_the_copy() -> None:
    """Records are archived before their copy is sent."""
    send: Callable[..., Any] = DeadLetterQueues.send
    archived = LetterWriter.archived

    async def pretend(self: Any, *arguments: Any, **more: Any) -> Sent:
        late.append(partial(send, self, *arguments, **more))
        return Sent.WRITTEN

    async def send_then(self: LetterWriter) -> None:
        await archived(self)
        await late.pop()()

    late: list[Callable[[], Any]] = []
    DeadLetterQueues.send = pretend  # type: ignore[method-assign]
    LetterWriter.archived = send_then  # type: ignore[method-assign]


def forget_what_was_given_up() -> None:
    """The leader that loads a state is not told which records were given up and have no letter yet."""
    read = ShareShard.read

    def partly(self: ShareShard, *arguments: Any) -> Any:
        effects = read(self, *arguments)
        effects.replies[:] = [(token, answer._replace(given_up=())) for token, answer in effects.replies]
        return effects

    ShareShard.read = partly  # type: ignore[method-assign]


BUGS = {
    each.__name__: each
    for each in (
        store_nothing_before_the_copy,
        repeat_with_another_producer,
        archive_before_the_copy,
        forget_what_was_given_up,
    )
}


if __name__ == "__main__":
    number, chosen, *bugs = sys.argv[1].split(":")
    for bug in bugs:
        BUGS[bug]()
    die_at(int(number), chosen)
    sys.exit(run_up(sys.argv[2:]))
