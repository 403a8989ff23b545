"""What a start makes of a move between two renames, if the directory that the log came from is not configured then."""

from __future__ import annotations

from flowstone.config import BrokerConfig
from flowstone.log.directories.future_replica import MOVED_FROM
from tests.support.managed_logs import FIRST, Broker, run


def test_a_copy_that_has_served_alone_counts_when_the_directory_of_its_source_is_there_again() -> None:
    async def body() -> None:
        broker = Broker()
        broker.config = both = BrokerConfig(log_dirs="/a,/b")
        broker.open()
        log, files = broker.log(), broker.files
        broker.append(log)
        target = "/b" if log.path.startswith("/a/") else "/a"
        broker.logs.close()
        files.new_directory(f"{target}/first-0")
        for name in files.names(log.path):
            files.copy(f"{log.path}/{name}", f"{target}/first-0/{name}", files.size(f"{log.path}/{name}"))
        files.replace(f"{target}/first-0/{MOVED_FROM}", b"id")
        broker.config = BrokerConfig(log_dirs=target)
        served = broker.open().logs[FIRST]
        assert not files.exists(f"{served.path}/{MOVED_FROM}")
        broker.append(served)
        broker.logs.close()
        broker.config = both
        logs = broker.open()
        assert FIRST in logs.offline  # an operator must say which of the two counts
        assert files.exists(served.path)
        logs.abort()

    run(body)


def test_what_a_move_left_is_removed_also_if_there_is_a_single_directory() -> None:
    async def body() -> None:
        broker = Broker("/a")
        broker.open().close()
        left = f"/a/first-0.{'0' * 32}-future"
        broker.files.new_directory(left)
        broker.open().abort()
        assert not broker.files.exists(left)

    run(body)
