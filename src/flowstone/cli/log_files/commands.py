"""`flowstone log`: inspects and verifies the files of a data directory, and repairs a damaged partition."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from flowstone.cli.common.errors import EXIT_FAILURE, CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import PARTITION_MAX
from flowstone.cli.common.progress import progress_bar
from flowstone.cli.common.text import counted
from flowstone.cli.log_files.dump import dump
from flowstone.cli.log_files.forget import forget
from flowstone.cli.log_files.output_forms import (
    report_document,
    report_lines,
)
from flowstone.cli.log_files.repair import invalidate_transaction_index, move_log_start, repair_segment
from flowstone.cli.log_files.verification import DataDirectory, PartitionReport
from flowstone.log.lifecycle.directory_identity import LOCK_FILE
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition

DirectoryArgument = Annotated[str, typer.Argument(metavar="DATA_DIR", help="The broker's data directory.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Inspect, verify and repair log files.", rich_markup_mode=None)
    group.command("dump")(dump)
    group.command("verify")(verify)
    group.command("repair")(repair)
    group.command("forget")(forget)
    app.add_typer(group, name="log", no_args_is_help=True)


def verify(
    data_directory: DirectoryArgument,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    json_output: JsonOutput = False,
) -> None:
    """Check every batch, its checksum included, and every index. Changes nothing; exit status 1 if damage is found."""
    with system_errors(data_directory):
        directory = DataDirectory(data_directory)
        partitions = directory.partitions(topic)
        bad = 0
        with progress_bar("verifying", directory.size_bytes(partitions)) as advance:
            for report in directory.verify_all(partitions, advance):
                bad += not report.is_good
                _print_report(report, json_output=json_output)
    if not json_output:
        count = counted(len(partitions), "partition")
        print(f"{bad} of {count} damaged: see `flowstone log repair --help`" if bad else f"{count}, nothing damaged")
    if bad:
        raise typer.Exit(EXIT_FAILURE)


def repair(
    data_directory: DirectoryArgument,
    topic: Annotated[str, typer.Option(help="The damaged partition's topic.")],
    partition: Annotated[int, typer.Option(min=0, max=PARTITION_MAX, help="The damaged partition's number.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this option, only show what would be lost.")
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Repair a damaged partition, so that the broker serves it again.

    The damaged batches are lost; every other record stays at its offset. Readers skip the lost offsets. The damaged
    file is kept with the suffix .damaged. If files are missing at the start of the log, the log then starts after them.
    A wrong transaction index is invalidated, and the broker's next start rebuilds it. The broker must be stopped.
    """
    with system_errors(data_directory), _locked(data_directory):
        directory, topic_partition = DataDirectory(data_directory), TopicPartition(topic, partition)
        if topic_partition not in directory.partitions(topic):
            raise CommandError(f"{data_directory} holds no partition {partition} of {topic}")
        with progress_bar("verifying", directory.size_bytes([topic_partition])) as advance:
            (report,) = directory.verify_all([topic_partition], advance)
        _print_report(report, json_output=json_output)
        if (report.damages or report.missing is not None) and not yes:
            raise CommandError("the records named above would be lost: run the command again with --yes to repair")
        if report.missing is not None:
            move_log_start(data_directory, topic_partition, report.missing)
        kept = _repair(report)
        for path in report.bad_transaction_indexes:
            invalidate_transaction_index(path)
    if json_output:
        moved = {"log_start_offset": report.missing.next_offset} if report.missing is not None else {}
        invalidated = {"invalidated": report.bad_transaction_indexes} if report.bad_transaction_indexes else {}
        print_document({"repaired": kept, **invalidated, **moved})
        return
    if report.missing is not None:
        print(f"{topic_partition} begins at offset {report.missing.next_offset} from now on")
    for path, kept_path in kept.items():
        print(f"repaired {path}; the damaged file is now {kept_path}")
    for path in report.bad_transaction_indexes:
        print(f"invalidated {path}; the broker's next start rebuilds it")
    if not kept and report.missing is None and not report.bad_transaction_indexes:
        print("nothing to repair" + ("; the broker rebuilds bad indexes by itself" if report.bad_indexes else ""))


def _repair(report: PartitionReport) -> dict[str, str]:
    """Repair all damaged files; return where each damaged one is kept."""
    paths = dict.fromkeys(damage.path for damage in report.damages)
    return {path: repair_segment(path, [each for each in report.damages if each.path == path]) for path in paths}


def _print_report(report: PartitionReport, *, json_output: bool) -> None:
    if json_output:
        print_document(report_document(report))
    else:
        print("\n".join(report_lines(report)))


@contextmanager
def _locked(data_directory: str) -> Iterator[None]:
    """Lock the directory, so that nothing else uses it."""
    if not os.path.isdir(data_directory):
        raise CommandError(f"{data_directory} is not a directory: name the broker's data directory")
    try:
        lock = SystemFiles().lock(f"{data_directory}/{LOCK_FILE}")
    except BlockingIOError:
        raise CommandError(f"a broker is running on {data_directory}: stop it first") from None
    try:
        yield
    finally:
        lock.release()
