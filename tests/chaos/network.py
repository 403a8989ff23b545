"""Where the brokers of a cluster are, and what lies between them: loopback, or a network of their own that can be cut.

`Namespaces` gives each broker a network namespace, and joins them by a bridge in the namespace of this process, where
ZooKeeper and the clients are, at addresses of their own. A cut is silent and in one direction: the sender is given a
hardware address that nobody has, so its packets vanish and its connections stay. Nothing is left behind: namespaces
have no names and end with the processes in them, and these with this one.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence

from tests.support.ports import HOST

_NET = "10.77.0"
_BRIDGE = "chaos"
_DEVICE = "eth0"
_NOBODY = "02:00:00:00:00:99"
# What a namespace needs to exist is a process: this one ends when its input does.
_HOLDER = ("unshare", "--net", "sh", "-c", "echo; exec cat")
_PRIVATE = "FLOWSTONE_CHAOS_PRIVATE"

ZOOKEEPER, CLIENTS = 253, 254  # the last numbers of their addresses, as a broker's node id is of its own


def why_no_namespaces() -> str | None:
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces and mounts need Linux and root"
    missing = [tool for tool in ("unshare", "nsenter", "ip", "mount", "mkfs.ext4") if shutil.which(tool) is None]
    return f"needs {', '.join(missing)}" if missing else None


def become_private(module: str, arguments: Sequence[str]) -> None:
    """Starts this program anew where its network and its mounts are its own, unless it is there already."""
    if os.environ.get(_PRIVATE) is None:
        command = ["unshare", "--net", "--mount", sys.executable, "-m", module, *arguments]
        os.execvpe(command[0], command, {**os.environ, _PRIVATE: "1"})


class Loopback:
    """Everybody is on this machine's loopback; nothing can be cut."""

    zookeeper_host = HOST

    def host_of(self, node_id: int) -> str:
        return HOST

    def prefix_of(self, node_id: int) -> tuple[str, ...]:
        """What a command begins with to run where the broker is."""
        return ()

    def close(self) -> None:
        pass


class Namespaces:
    zookeeper_host = f"{_NET}.{ZOOKEEPER}"

    def __init__(self, node_ids: Sequence[int]) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        for number in (CLIENTS, ZOOKEEPER):  # what clients send comes from the first
            _run("ip", "address", "add", f"{_NET}.{number}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        self._holders = {node_id: self._add(node_id) for node_id in node_ids}
        self._cuts: set[tuple[int, int]] = set()

    def _add(self, node_id: int) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen(_HOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in its namespace
        port = f"port{node_id}"
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", _DEVICE, "netns", str(holder.pid))
        _run("ip", "link", "set", port, "master", _BRIDGE, "up")
        inside = _inside(holder)
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "address", "add", f"{_NET}.{node_id}/24", "dev", _DEVICE)
        _run(*inside, "ip", "link", "set", _DEVICE, "up")
        return holder

    def host_of(self, node_id: int) -> str:
        return f"{_NET}.{node_id}"

    def prefix_of(self, node_id: int) -> tuple[str, ...]:
        return _inside(self._holders[node_id])

    def cut(self, senders: Collection[int], receivers: Collection[int]) -> None:
        """What the first send to the second is lost from now on: node ids, and CLIENTS or, to be sent to, ZOOKEEPER.

        What clients send is lost with what ZooKeeper sends, for they are on the same machine.
        """
        for sender, receiver in itertools.product(senders, receivers):
            assert sender != ZOOKEEPER
            self._cuts.add((sender, receiver))
            self._neighbour("replace", sender, receiver, "lladdr", _NOBODY, "nud", "permanent")

    def heal(self) -> None:
        for sender, receiver in self._cuts:
            self._neighbour("del", sender, receiver)
        self._cuts.clear()

    def _neighbour(self, action: str, sender: int, receiver: int, *more: str) -> None:
        inside, device = (self.prefix_of(sender), _DEVICE) if sender in self._holders else ((), _BRIDGE)
        _run(*inside, "ip", "neighbour", action, f"{_NET}.{receiver}", *more, "dev", device)

    def close(self) -> None:
        for holder in self._holders.values():
            holder.communicate()


def _inside(holder: subprocess.Popen[bytes]) -> tuple[str, ...]:
    return ("nsenter", "--target", str(holder.pid), "--net")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
