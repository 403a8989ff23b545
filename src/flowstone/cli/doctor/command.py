"""`flowstone doctor`: checks this machine, its disk and the broker, and says how to fix problems."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, connect, fetch_metadata
from flowstone.cli.common.errors import EXIT_FAILURE, CommandError
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.doctor.checks import (
    Finding,
    Status,
    check_clock,
    check_compiler,
    check_event_loop,
    check_kernel,
    check_open_files,
    check_python,
    check_versions,
)
from flowstone.cli.doctor.disk_checks import check_disk
from flowstone.cli.doctor.transaction_checks import check_transactions
from flowstone.config import BROKER_SETTINGS


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    data: Annotated[
        str, typer.Option(metavar="DIR", help="The broker's data directory, or several separated by commas.")
    ] = str(BROKER_SETTINGS["log.dirs"].default),
    bootstrap: Annotated[
        str | None,
        typer.Option(envvar="FLOWSTONE_BOOTSTRAP", metavar="HOST:PORT", help="The address of the broker to check."),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Check this machine, the data directory and the broker. Exit status: 1 for problems, 0 for warnings alone."""
    findings = [
        check_python(),
        check_versions(),
        check_kernel(),
        check_compiler(),
        check_event_loop(),
        check_open_files(),
        check_clock(),
        *(finding for each in data.split(",") for finding in check_disk(each)),
        check_broker(bootstrap),
    ]
    if findings[-1].status is Status.GOOD:
        findings.append(check_transactions(bootstrap or DEFAULT_BOOTSTRAP))
    good = all(finding.status is not Status.BAD for finding in findings)
    if json_output:
        print_document({"good": good, "checks": [finding._asdict() for finding in findings]})
    else:
        print("\n".join(map(_lines, findings)))
    if not good:
        raise typer.Exit(EXIT_FAILURE)


def check_broker(bootstrap: str | None) -> Finding:
    """Check that the broker answers; a missing answer is a warning unless its address was given."""
    address = bootstrap or DEFAULT_BOOTSTRAP
    try:
        admin = connect(address)
        begun = time.perf_counter()
        metadata = fetch_metadata(admin, address)
        took_ms = (time.perf_counter() - begun) * 1000
    except CommandError as error:
        return Finding("broker", Status.BAD if bootstrap else Status.WARNING, str(error))
    brokers, topics = counted(len(metadata.brokers), "broker"), counted(len(metadata.topics), "topic")
    return Finding("broker", Status.GOOD, f"{address} answers in {took_ms:.1f} ms: {brokers}, {topics}")


def _lines(finding: Finding) -> str:
    line = f"{finding.status:<8} {finding.name}: {finding.finding}"
    return f"{line}\n         {finding.advice}" if finding.advice else line
