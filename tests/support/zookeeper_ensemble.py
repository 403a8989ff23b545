"""Three ZooKeeper servers on loopback that agree among themselves: one of them may die."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from tests.support.ports import free_ports

HOST = "127.0.0.1"
SERVER_IDS = (1, 2, 3)
# How many ticks a server may take to join the others, and to fall behind them.
LIMITS = {"initLimit": 20, "syncLimit": 10}
ANSWER_TIMEOUT_S = 5.0


class ZooKeeperEnsemble:
    """Serves once constructed, until the end of its `with` block."""

    def __init__(self, directory: Path) -> None:
        peers = {f"server.{number}": f"{HOST}:{free_ports()}:{free_ports()}" for number in SERVER_IDS}

        def start(number: int) -> ZooKeeperServer:
            home = directory / str(number)
            home.mkdir(parents=True)
            (home / "myid").write_text(str(number))
            return ZooKeeperServer(str(home), settings={**LIMITS, **peers})

        with ThreadPoolExecutor(len(SERVER_IDS)) as threads:  # none of them serves before the others run
            self.servers = list(threads.map(start, SERVER_IDS))
        self.address = ",".join(server.address for server in self.servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.stop)

    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.is_running and "Mode: leader" in _described(server))


def _described(server: ZooKeeperServer) -> str:
    with socket.create_connection((HOST, server.port), ANSWER_TIMEOUT_S) as connection:
        connection.sendall(b"srvr")
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
