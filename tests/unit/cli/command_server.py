"""Runs commands for a shell without the price of loading them each time: a process that has loaded them forks.

`python -m tests.unit.cli.command_server SOCKET` serves; `CLIENT`, a program of its own, hands its three streams, its
arguments, its directory and its environment over and ends with the command's exit status. What runs is the entry point
of `flowstone`, in a process of its own, on the caller's streams; only signals do not reach it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowstone.cli.commands import GROUPS
from flowstone.cli.main import main

REQUEST_BYTES_MAX = 1 << 20

CLIENT = """
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
request = {"arguments": sys.argv[2:], "directory": os.getcwd(), "environment": dict(os.environ)}
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(16) or b"70"))
"""


@contextmanager
def commands_in(directory: Path, environment: dict[str, str]) -> Iterator[list[str]]:
    """What to put before a command's arguments; the server keeps its files in `directory`."""
    (directory / "client.py").write_text(CLIENT)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.cli.command_server", str(directory / "socket")],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, "PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(Path(__file__).parents[3])))},
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield [sys.executable, "-SI", str(directory / "client.py"), str(directory / "socket")]
        server.terminate()


def serve(path: str) -> None:
    for module in GROUPS.values():
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children: they answer themselves
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        while True:
            connection, _address = listening.accept()
            if os.fork() == 0:
                listening.close()
                os._exit(_answer(connection))
            connection.close()


def _answer(connection: socket.socket) -> int:
    data, descriptors, _flags, _address = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
    while more := connection.recv(REQUEST_BYTES_MAX):
        data += more
    request = json.loads(data)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = ["flowstone", *request["arguments"]]
    status = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b"%d" % status)
    return status


def _run() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    serve(sys.argv[1])
