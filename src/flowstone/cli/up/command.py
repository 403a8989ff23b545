"""`flowstone up`: runs a broker in the foreground until a signal or a failed disk ends it.

Standard output is for programs that wait for the broker: startup information, then `ready HOST:PORT` when it accepts
connections. The log goes to standard error. The first SIGTERM or SIGINT stops the broker cleanly; a second SIGINT kills
it. Before the broker is ready, a signal ends the process immediately, because recovery can be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from flowstone.cli.common.errors import EXIT_FAILURE
from flowstone.cli.common.standard_output import OutputClosed
from flowstone.cli.up import log_output, settings
from flowstone.cli.up.process import collector_paused, raise_open_files_limit
from flowstone.errors import StartupError
from flowstone.ports.background import request_short_slices
from flowstone.ports.loops import new_event_loop
from flowstone.ports.memory import return_freed_blocks

if TYPE_CHECKING:
    from flowstone.app import App

logger = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_HTTP = f"{DEFAULT_HOST}:9080"

_EPILOG = (
    "Settings have Kafka's names. Later sources override earlier ones: a file, the environment "
    "(FLOWSTONE_SET_LOG_RETENTION_MS=… is log.retention.ms), --set, and the flags for single settings."
)


def run_up(arguments: list[str]) -> int:
    """Run the command and return the exit status. Raises ConfigError or StartupError, with a message for users."""
    options = build_parser().parse_args(arguments)
    log_output.set_up_logging(options.log_format, options.log_level)
    values = _values(options)
    settings.check_zookeeper(values.get("zookeeper.connect", ""))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if options.brokers is not None:
        from flowstone.cli.up.local_cluster import run_cluster

        return run_cluster(options.brokers, values, options)
    request_short_slices()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(values, as_json=options.json))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flowstone up",
        description="Run a broker, or a cluster of them, in the foreground.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--data",
        metavar="DIR",
        help="the data directory, created if it is missing, or several separated by commas (default: flowstone-data)",
    )
    add(
        "--listen",
        metavar="[NAME://]HOST:PORT",
        action="append",
        default=[],
        help="an address to listen on, port 0 for any free one; repeatable (default: 127.0.0.1:9092)",
    )
    add("--port", metavar="PORT", type=int, help="short for --listen 127.0.0.1:PORT")
    add(
        "--advertise",
        metavar="[NAME://]HOST:PORT",
        action="append",
        default=[],
        help="the address that clients connect to, if it differs from the one listened on; repeatable",
    )
    add(
        "--http",
        metavar="HOST:PORT|off",
        help=f"the address of the health and metrics pages (default: {DEFAULT_HTTP}, or none if that is taken)",
    )
    add(
        "--brokers",
        metavar="N",
        type=int,
        help="start a cluster of N brokers and a ZooKeeper on this machine, at consecutive ports; needs Java",
    )
    add(
        "--zookeeper",
        metavar="HOST:PORT",
        help="join the cluster of this ZooKeeper ensemble; separate servers by commas",
    )
    add("--node-id", metavar="ID", type=int, help="this broker's id in its cluster (default: 1)")
    add("--config", metavar="FILE", help="read settings from a .properties file")
    add(
        "--insecure",
        action="store_true",
        help="allow listeners without encryption and logins on addresses that other machines reach",
    )
    add("--set", metavar="NAME=VALUE", action="append", default=[], help="set one setting; repeatable")
    add(
        "--log-format",
        choices=log_output.FORMATS,
        default="text",
        help="the format of the log on standard error (default: text)",
    )
    add(
        "--log-level", choices=log_output.LEVELS, default="info", help="the lowest level that is logged (default: info)"
    )
    add("--json", action="store_true", help="print that the broker is ready, or why it cannot start, as JSON")
    return parser


def _values(options: argparse.Namespace) -> dict[str, str]:
    listen = options.listen if options.port is None else [*options.listen, f"{DEFAULT_HOST}:{options.port}"]
    sources = (
        settings.read_file(options.config) if options.config is not None else {},
        settings.read_environment(os.environ),
        settings.read_assignments(options.set),
    )
    flags = settings.read_addresses(listen, options.advertise, settings.merge(sources).get("listeners", ""))
    if options.insecure:
        flags["listeners.insecure.enable"] = "true"
    given = {
        "log.dirs": options.data,
        "http.listener": options.http,
        "zookeeper.connect": options.zookeeper,
        "node.id": options.node_id,
    }
    flags |= {name: str(value) for name, value in given.items() if value is not None}
    return settings.merge((*sources, flags))


async def serve(
    values: dict[str, str], *, as_json: bool, default_http: str = DEFAULT_HTTP, with_input: bool = False
) -> int:
    """Run a broker until a signal (or, with `with_input`, the end of standard input); return the exit status."""
    raise_open_files_limit()
    return_freed_blocks()
    with collector_paused():
        from flowstone.app import App

        app = App(values, default_http=default_http)
        try:
            await app.start()
        except StartupError as error:
            raise StartupError(f"{error}{_advice(error)}") from error
    stopping = watch_signals()
    if with_input:
        _watch_input(stopping)
    _announce(app, as_json=as_json)
    failed = asyncio.ensure_future(app.wait_failed())
    await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
    status = EXIT_FAILURE if failed.done() else 0
    if stopping.done():
        logger.info("stopping on %s", stopping.result())
    failed.cancel()
    await app.stop()
    return status


def _advice(error: StartupError) -> str:
    """Return what to do about a system error, as the end of a sentence, if that is known."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, BlockingIOError):
        return "; stop that one, or choose another directory with --data"
    if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
        return "; stop what listens there, or choose another address with --listen"
    if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
        return "; free disk space, or choose another directory with --data"
    if isinstance(cause, PermissionError) and cause.filename is None:
        return "; run as a user who may, or choose another address with --listen (ports below 1024 are the system's)"
    if isinstance(cause, PermissionError):
        return "; run as a user who may write there, or choose another directory with --data"
    if isinstance(cause, OSError) and cause.filename is not None:
        return "; choose another directory with --data"
    return ""


def watch_signals() -> asyncio.Future[str]:
    """Return a future that completes with a signal's name when SIGTERM or SIGINT arrives."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[str] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        # A second SIGINT has its default effect: it works even if the disk blocks the event loop.
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not stopping.done():
            stopping.set_result(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


def _watch_input(stopping: asyncio.Future[str]) -> None:
    """Complete `stopping` at the end of standard input, which means that the parent process has ended."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

    def on_end() -> None:
        loop.remove_reader(descriptor)
        if not stopping.done():
            stopping.set_result("the end of its input")

    loop.add_reader(descriptor, on_end)


def _announce(app: App, *, as_json: bool) -> None:
    addresses = {name: format_address(host, port) for name, (host, port) in app.addresses.items()}
    ready = next(iter(addresses.values()))
    data = ",".join(map(os.path.abspath, app.config.log_directories))
    said = {"data": data, "flush": app.flush_mode, "kernel": app.kernel}
    if as_json:
        text = json.dumps({**said, "listeners": addresses, "http": app.http_address, "ready": ready})
    else:
        lines = [f"{name} {value}" for name, value in said.items()]
        if len(addresses) > 1:
            lines += [f"listener {name} {address}" for name, address in addresses.items()]
        if app.http_address is not None:
            lines.append(f"http {app.http_address}")
        text = "\n".join([*lines, f"ready {ready}"])
    say(text, ready)


def say(text: str, ready: str) -> None:
    """Print to standard output; ignore an error, because the parent process may have closed its end."""
    try:
        print(text, flush=True)
    except (BrokenPipeError, OutputClosed):
        logger.warning("standard output is closed; serving on %s", ready)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it at the end


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
