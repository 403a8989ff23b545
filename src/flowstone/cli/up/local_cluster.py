"""`flowstone up --brokers N`: a ZooKeeper and N brokers on this machine, as processes that stop together.

Use it to try out a cluster or for work that needs one temporarily; on one machine it is not safer than a single broker.
Broker `i` has its data in DIR/i and the i-th port; ZooKeeper's data is in DIR/zookeeper.

The brokers run `member` and end with this process, for whatever reason it ends. A failed broker is reported but not
restarted, so that users can see what the others do. The brokers stop first, all at once, then ZooKeeper.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import flowstone
from flowstone.broker.network.listeners import PORT_MAX, parse_listeners
from flowstone.cli.common.errors import EXIT_FAILURE, CommandError
from flowstone.cli.up import settings
from flowstone.cli.up.command import DEFAULT_HTTP, format_address, say, watch_signals
from flowstone.config import parse_broker_config
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import StartupError
from flowstone.log.lifecycle.directory_identity import LOCK_FILE, META_PROPERTIES
from flowstone.ports.files import Lock
from flowstone.ports.system_files import SystemFiles

logger = logging.getLogger(__name__)

BROKERS_MAX = 16
# Defaults that make failover visible, unless the operator sets others.
REPLICATION_FACTOR, MIN_INSYNC_REPLICAS = 3, 2
ZOOKEEPER_DIRECTORY = "zookeeper"
# In addition to shutdown.timeout.ms, for handing over, flushing and closing.
STOP_TIMEOUT_S = 30.0

_PACKAGE_ROOT = str(Path(flowstone.__file__).parents[1])


def run_cluster(count: int, values: Mapping[str, str], options: argparse.Namespace) -> int:
    """Run the command to its end and return the exit status."""
    plans = plan_members(count, values)
    directory = os.path.dirname(plans[0]["log.dirs"])
    lock = _take(directory)
    try:
        return asyncio.run(_Cluster(directory, plans, options).run())
    finally:
        lock.release()


def plan_members(count: int, values: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the settings of each broker, except the address of ZooKeeper."""
    if not 1 <= count <= BROKERS_MAX:
        raise CommandError(f"--brokers {count}: choose between 1 and {BROKERS_MAX}")
    for name, flag in (
        ("node.id", "--node-id"),
        ("zookeeper.connect", "--zookeeper"),
        ("advertised.listeners", "--advertise"),
    ):
        if name in values:
            raise CommandError(f"with --brokers the brokers get a {name} each: leave out {flag}")
    config, _ = parse_broker_config(values)
    if len(config.log_directories) != 1:
        raise CommandError("with --brokers name one directory as --data: each broker gets one of its own in it")
    listeners, _ = parse_listeners(config)
    if len(listeners) != 1:
        raise CommandError("with --brokers name one address to listen on, the first broker's: ports count up from it")
    data, (listener,) = os.path.abspath(config.log_directories[0]), listeners
    defaults = {
        "default.replication.factor": str(min(REPLICATION_FACTOR, count)),
        "min.insync.replicas": str(MIN_INSYNC_REPLICAS if count >= REPLICATION_FACTOR else 1),
    }
    plans = []
    for at in range(count):
        address = format_address(listener.host, _port(listener.port, at))
        own = {"node.id": str(at + 1), "log.dirs": f"{data}/{at + 1}", "listeners": f"{listener.name}://{address}"}
        if values.get("http.listener", "off") not in ("", "off"):
            own["http.listener"] = _address_at(values["http.listener"], at)
        plans.append(settings.merge((defaults, values, own)))
    return plans


def _port(first: int, at: int) -> int:
    """Return the port of broker `at`, counted from the first; port 0 stays 0."""
    if first + at > PORT_MAX:
        raise CommandError(f"there is no port {first + at}: choose a lower one for the first broker")
    return first + at if first else 0


def _address_at(address: str, at: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{_port(int(port), at)}" if port.isdecimal() else address


def _take(directory: str) -> Lock:
    """Lock the directory: two ZooKeepers would write to the same files."""
    if os.path.exists(os.path.join(directory, META_PROPERTIES)):
        raise StartupError(
            f"{directory} is the data directory of a single broker; choose another with --data, or see "
            "`flowstone cluster found --help` for how it becomes a cluster"
        )
    files = SystemFiles()
    try:
        os.makedirs(directory, exist_ok=True)
        return files.lock(os.path.join(directory, LOCK_FILE))
    except BlockingIOError as error:
        raise StartupError(f"{directory} is in use by another cluster; stop that one, or choose another") from error
    except OSError as error:
        raise StartupError(f"the data directory {directory} cannot be used: {error.strerror}") from error


class _Member:
    """The process of one broker."""

    def __init__(self, plan: Mapping[str, str], zookeeper: str, default_http: str, options: argparse.Namespace) -> None:
        self.node_id = int(plan["node.id"])
        self._values = {**plan, "zookeeper.connect": zookeeper}
        self._asked = {
            "values": self._values,
            "default_http": default_http,
            "log_format": options.log_format,
            "log_level": options.log_level,
        }
        self.process: asyncio.subprocess.Process | None = None
        self.announcement: dict[str, Any] = {}

    async def start(self) -> None:
        """Start the broker and return when it is ready. Raises StartupError if it cannot start."""
        process = self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "flowstone.cli.up.member"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must only reach this process
            env={**os.environ, "PYTHONPATH": os.pathsep.join((_PACKAGE_ROOT, os.environ.get("PYTHONPATH", "")))},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(self._asked).encode() + b"\n")
        line = await process.stdout.readline()
        answer = json.loads(line) if line else {"error": "its process ended before it was ready"}
        if "error" in answer:
            raise StartupError(f"broker {self.node_id} cannot start: {answer['error']}")
        self.announcement = {"node_id": self.node_id, "pid": process.pid, **answer}

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            logger.error("broker %d does not stop in time and is killed", self.node_id)
            self.process.kill()
            await self.process.wait()

    def tell_ended(self, left: int) -> None:
        assert self.process is not None
        code = self.process.returncode or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        logger.warning(
            "broker %d ended %s; %d are left; to start it again: flowstone up --node-id %d --zookeeper %s --data %s "
            "--listen %s",
            *(self.node_id, how, left, self.node_id, self._values["zookeeper.connect"], self._values["log.dirs"]),
            self.announcement["ready"],
        )


class _Cluster:
    def __init__(self, directory: str, plans: Sequence[Mapping[str, str]], options: argparse.Namespace) -> None:
        self._directory, self._plans, self._options = directory, plans, options
        self._members: list[_Member] = []

    async def run(self) -> int:
        stopping = watch_signals()
        try:
            zookeeper = await asyncio.to_thread(ZooKeeperServer, os.path.join(self._directory, ZOOKEEPER_DIRECTORY))
        except StartupError as error:
            raise StartupError(f"{error}; or use a ZooKeeper of your own: --zookeeper HOST:PORT") from error
        try:
            if not await self._start(zookeeper.address, stopping):
                return EXIT_FAILURE
            self._announce(zookeeper.address)
            return await self._attend(stopping)
        finally:
            await asyncio.gather(*(member.stop() for member in self._members))
            await asyncio.to_thread(zookeeper.stop)

    async def _start(self, zookeeper: str, stopping: asyncio.Future[str]) -> bool:
        """Start ZooKeeper and the brokers; return False if a signal interrupted it.

        Raises StartupError if one of them cannot start.
        """
        for at, plan in enumerate(self._plans):
            self._members.append(_Member(plan, zookeeper, _address_at(DEFAULT_HTTP, at), self._options))
        starting = asyncio.ensure_future(asyncio.gather(*map(self._start_member, self._members)))
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        with suppress(asyncio.CancelledError, StartupError):  # report the signal, not the error that it caused
            await starting
        return False

    async def _start_member(self, member: _Member) -> None:
        await member.start()
        if not self._options.json:
            told = member.announcement
            pages = f", http {told['http']}" if told["http"] is not None else ""
            say(f"broker {member.node_id} ready {told['ready']}{pages}, pid {told['pid']}", told["ready"])

    def _announce(self, zookeeper: str) -> None:
        announcements = [member.announcement for member in self._members]
        first = announcements[0]
        ready = ",".join(each["ready"] for each in announcements)
        said = {"data": self._directory, "flush": first["flush"], "kernel": first["kernel"], "zookeeper": zookeeper}
        if self._options.json:
            say(json.dumps({**said, "brokers": announcements, "ready": ready}), ready)
        else:
            say("\n".join([*(f"{name} {value}" for name, value in said.items()), f"ready {ready}"]), ready)

    async def _attend(self, stopping: asyncio.Future[str]) -> int:
        """Wait for a signal or the end of the last broker; return the exit status."""
        running = {asyncio.ensure_future(_ended(member)): member for member in self._members}
        while running:
            heard: list[asyncio.Future[Any]] = [stopping, *running]
            await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                logger.info("stopping on %s", stopping.result())
                for each in running:
                    each.cancel()
                return 0
            for each in [each for each in running if each.done()]:
                running.pop(each).tell_ended(len(running))
        logger.error("all brokers have ended")
        return EXIT_FAILURE


async def _ended(member: _Member) -> None:
    assert member.process is not None
    await member.process.wait()
