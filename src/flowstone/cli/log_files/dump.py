"""`flowstone log dump`: prints what the files of a partition hold, and their damage."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from flowstone.cli.common.errors import EXIT_FAILURE, CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.log_files.output_forms import (
    batch_document,
    batch_line,
    damage_document,
    record_document,
    record_line,
    stretch,
    time_text,
)
from flowstone.cli.log_files.survey import Damage, Preallocation, open_for_reading, segment_paths, walk
from flowstone.cli.log_files.transaction_files import (
    holds_transaction_state,
    is_transaction_file,
    marker_document,
    marker_of,
    marker_text,
    read_entries,
    state_document,
    state_of,
    state_text,
    transaction_paths,
)
from flowstone.errors import ApiError
from flowstone.log.segments.batch_scan import ScannedBatch
from flowstone.log.segments.file_names import offset_in_name, offset_name
from flowstone.log.segments.segment import LOG_SUFFIX
from flowstone.ports.files import File
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import Record, decode_records


def dump(
    path: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR", help="A .log, .txnindex or .snapshot file, or a partition's directory."),
    ],
    records: Annotated[bool, typer.Option("--records", help="Print each batch's records too.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """Print the batches of a log file, aborted transactions, producer states, and any damage. Changes nothing."""
    with system_errors(path):
        if is_transaction_file(path):
            damaged = _dump_entries([path], json_output=json_output)
        elif os.path.isdir(path):
            segments = segment_paths(path)
            if not segments:
                raise CommandError(f"{path} holds no log files: name a .log file or a partition's directory")
            damaged = _dump_segments(segments, records=records, json_output=json_output)
            damaged |= _dump_entries(transaction_paths(path), json_output=json_output)
        else:
            damaged = _dump_segments([(_base_offset(path), path)], records=records, json_output=json_output)
    if damaged:
        raise typer.Exit(EXIT_FAILURE)


def _dump_segments(segments: list[tuple[int, str]], *, records: bool, json_output: bool) -> bool:
    """Print what the log files hold; return whether any is damaged."""
    damaged = False
    for number, (base_offset, segment_path) in enumerate(segments, 1):
        if not json_output:
            print(segment_path)
        file = open_for_reading(segment_path)
        for found in walk(file, base_offset):
            if isinstance(found, Preallocation) and number < len(segments):
                found = found.as_damage(segment_path)
            damaged |= isinstance(found, Damage)
            _dump_found(file, found, records=records, json_output=json_output)
    return damaged


def _dump_entries(paths: list[str], *, json_output: bool) -> bool:
    """Print the entries of transaction indexes and producer snapshots; return whether any is damaged."""
    damaged = False
    for path in paths:
        if not json_output:
            print(path)
        for kind, document, line in read_entries(path):
            damaged |= kind == "damage"
            if json_output:
                print_document({kind: document})
            else:
                print(line)
    return damaged


def _dump_found(file: File, found: ScannedBatch | Damage | Preallocation, *, records: bool, json_output: bool) -> None:
    if isinstance(found, Damage):
        if json_output:
            print_document({"damage": damage_document(found)})
        else:
            print(f"  DAMAGED {stretch(found)}: {found.reason}")
        return
    if isinstance(found, Preallocation):
        if json_output:
            print_document({"room": {"file": file.path, **found._asdict()}})
        else:
            print(
                f"  preallocated space of {found.end_position - found.position} bytes from position {found.position} on"
            )
        return
    marker = marker_of(file, found)
    if json_output:
        print_document({"batch": batch_document(file.path, found) | {"marker": marker_document(marker)}})
    else:
        print(batch_line(found) + (f": {marker_text(marker)}" if marker is not None else ""))
    if not records:
        return
    try:
        for record in decode_records(file.read(found.position, found.header.size_bytes)):
            _dump_record(file, record, marker, json_output=json_output)
    except ApiError as error:  # also if it cannot be decompressed
        if json_output:
            print_document({"unreadable": {"file": file.path, "position": found.position, "reason": str(error)}})
        else:
            print(f"    its records cannot be read: {error}")


def _dump_record(file: File, record: Record, marker: EndMarker | None, *, json_output: bool) -> None:
    """Print a record; the state of a transactional id, or an end marker, in words."""
    state = state_of(record) if marker is None and holds_transaction_state(file.path) else None
    if json_output:
        decoded = {"transaction": state_document(state)} if state is not None else {}
        print_document({"record": record_document(file.path, record) | decoded})
    elif marker is not None:
        print(f"    {record.offset} {time_text(record.timestamp)} {marker_text(marker)}")
    elif state is not None:
        print(f"    {record.offset} {time_text(record.timestamp)} {state_text(state)}")
    else:
        print(record_line(record))


def _base_offset(path: str) -> int:
    base_offset = offset_in_name(os.path.basename(path), LOG_SUFFIX)
    if base_offset is None:
        raise CommandError(f"{path} is not named like a log file, such as {offset_name(0, LOG_SUFFIX)}")
    return base_offset
