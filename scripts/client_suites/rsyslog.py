"""rsyslog: a real daemon that writes log lines to a topic (omkafka) and reads them as a group member (imkafka)."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.client_suites.suite import STOP_TIMEOUT_S, CheckFailed, Server, Suite, Unavailable, install, run, tool

PACKAGE = "rsyslog-kafka"
TOPIC = "syslog"
LINES = 500
WAIT_S = 30
POLL_S = 0.1

SHIPPING = """
module(load="imfile")
module(load="omkafka")
input(type="imfile" file="{lines}" tag="app" ruleset="ship")
template(name="text" type="string" string="%msg%")
ruleset(name="ship") {{
  action(type="omkafka" broker=["{address}"] topic="{topic}" template="text" confParam=["acks=all"])
}}
"""
READING = """
module(load="imkafka")
input(type="imkafka" topic="{topic}" broker=["{address}"] consumergroup="readers" ruleset="keep"
      confParam=["auto.offset.reset=earliest"])
template(name="text" type="string" string="%rawmsg%\\n")
ruleset(name="keep") {{
  action(type="omfile" file="{kept}" template="text")
}}
"""


def run_suite(suite: Suite, server: Server) -> None:
    daemon = tool("rsyslogd", package="rsyslog")
    with tempfile.TemporaryDirectory(prefix="flowstone-rsyslog-") as work:
        folder = Path(work)
        lines, kept = folder / "lines", folder / "kept"
        _check_modules(daemon, folder)
        lines.write_text("".join(f"line {number}\n" for number in range(LINES)))
        places = {"address": server.address, "topic": TOPIC, "lines": str(lines), "kept": str(kept)}
        wanted = {f"line {number}" for number in range(LINES)}
        suite.check("omkafka ships every line", lambda: _ship(daemon, folder, places, server, wanted))
        suite.check("imkafka reads them in a group", lambda: _read(daemon, folder, places, kept, wanted))


def _check_modules(daemon: str, folder: Path) -> None:
    """Raise Unavailable if the modules for Kafka, which are in a separate package, are missing."""
    config = folder / "check.conf"
    config.write_text('module(load="omkafka")\nmodule(load="imkafka")\naction(type="omfile" file="/dev/null")\n')
    for attempt in range(2):
        try:
            run([daemon, "-N1", "-f", str(config)])
        except CheckFailed as error:
            if attempt:
                raise Unavailable(f"{PACKAGE} is not there and could not be installed") from error
            install(PACKAGE)
        else:
            return


def _ship(daemon: str, folder: Path, places: dict[str, str], server: Server, wanted: set[str]) -> None:
    kcat = tool("kcat", package="kcat")
    reading = [kcat, "-b", server.address, "-q", "-C", "-t", TOPIC, "-o", "beginning", "-e"]
    run([kcat, "-b", server.address, "-L", "-t", TOPIC])  # makes the topic
    with _running(daemon, folder, "ship", SHIPPING.format(**places)):
        _wait_for(lambda: {line.strip() for line in run(reading).splitlines()}, wanted)


def _read(daemon: str, folder: Path, places: dict[str, str], kept: Path, wanted: set[str]) -> None:
    with _running(daemon, folder, "read", READING.format(**places)):
        _wait_for(lambda: {line.strip() for line in kept.read_text().splitlines()} if kept.exists() else set(), wanted)


def _wait_for(look: Callable[[], set[str]], wanted: set[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while (found := look()) != wanted:
        if time.monotonic() > deadline:
            raise CheckFailed(f"{len(found & wanted)} of {len(wanted)} lines arrived, {len(found - wanted)} others")
        time.sleep(POLL_S)


@contextmanager
def _running(daemon: str, folder: Path, name: str, config: str) -> Iterator[None]:
    """Run the daemon in the foreground with its own state; stop it by its process id."""
    file, state = folder / f"{name}.conf", folder / f"{name}-state"
    state.mkdir()
    file.write_text(f'global(workDirectory="{state}")\n' + config)
    command = [daemon, "-n", "-f", str(file), "-i", str(folder / f"{name}.pid")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
