"""The Confluent wire format: which schema each value was written with, and the value itself.

    0, the schema's id in four bytes, [Protobuf: the message's indexes,] the value
    or in the header `__value_schema_id`: 0 and the id, or 1 and the schema's GUID, with the indexes; then the record's
    value has no frame

The indexes of a Protobuf message say which one of the file it is: their number, and then the place in each level, as
Avro's numbers; one 0 stands for the first message. The header's name, its forms and the indexes in it are as in
Confluent's clients.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.cursor import ALL, Cursor, Ints

HEADER = "__value_schema_id"
FRAME_BYTES = 5
GUID_BYTES = 16
INDEXES_MAX = 32
_FIRST_MESSAGE = (0,)


@dataclass(frozen=True)
class SchemaKey:
    """The reference of a record to its schema: an id or a GUID. `indexes` are those of a Protobuf message."""

    id: int = -1
    guid: str = ""
    indexes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"schema {self.guid or self.id}"


@dataclass(frozen=True)
class Framed:
    """The values without their frames. `which` has the place in `keys` of each value's schema, -1 for bad ones."""

    keys: tuple[SchemaKey, ...]
    which: Ints
    values: pa.Array
    causes: dict[int, tuple[BadValue, str]]


def split(values: pa.Array, headers: pa.Array | None, *, indexes: bool) -> Framed:
    """Split the values from the schema ids that their frames or headers contain. With `indexes` frames have Protobuf
    indexes.
    """
    cursor = Cursor(values)
    found = _from_headers(headers, len(values), indexes=indexes) if headers is not None else {}
    which = np.full(len(values), -1, np.int64)
    keys: list[SchemaKey] = []
    for key, rows in found.items():
        if key is None:
            cursor.fail(ALL, rows, BadValue.BAD_FRAME, f"the header {HEADER} holds neither a schema's id nor its GUID")
        else:
            which[rows] = len(keys)
            keys.append(key)
    named = np.concatenate([*found.values(), np.zeros(0, np.int64)])
    framed = np.setdiff1d(np.arange(len(values)), named)
    if len(framed):
        _read_frames(cursor, framed, which, keys, indexes=indexes)
    starts = cursor.positions
    return Framed(tuple(keys), which, cursor.slices(starts, cursor.ends - starts), cursor.causes)


def _read_frames(cursor: Cursor, rows: Ints, which: Ints, keys: list[SchemaKey], *, indexes: bool) -> None:
    """Move the positions of these records behind their frames, and note their keys."""
    starts = cursor.positions[rows]
    frame = cursor.matrix(starts, FRAME_BYTES)
    short = cursor.ends[rows] - starts < FRAME_BYTES
    cursor.fail(rows, short, BadValue.BAD_FRAME, "the value has no frame of the Confluent wire format: it is too short")
    message = "the value has no frame of the Confluent wire format: its first byte is not 0"
    cursor.fail(rows, frame[:, 0] != 0, BadValue.BAD_FRAME, message)
    good = ~cursor.bad[rows]
    rows, frame = rows[good], frame[good]
    cursor.positions[rows] += FRAME_BYTES
    ids = np.ascontiguousarray(frame[:, 1:5]).view(">i4").ravel().astype(np.int64)
    for id, members in _groups(ids, rows):
        if not indexes:
            which[members] = len(keys)
            keys.append(SchemaKey(id))
            continue
        for path, of_path in _index_groups(cursor, members):
            which[of_path] = len(keys)
            keys.append(SchemaKey(id, indexes=path))


def _groups(ids: Ints, rows: Ints) -> list[tuple[int, Ints]]:
    unique = np.unique(ids)
    return [(int(each), rows[ids == each]) for each in unique]


def _index_groups(cursor: Cursor, rows: Ints) -> list[tuple[tuple[int, ...], Ints]]:
    """Read the indexes of these records. Return the records of each path of indexes."""
    counts = cursor.longs(rows, "the message's indexes")
    wrong = (counts < 0) | (counts > INDEXES_MAX)
    cursor.fail(rows, wrong, BadValue.BAD_FRAME, "the frame's indexes of a message are malformed")
    good = ~cursor.bad[rows]
    rows, counts = rows[good], counts[good]
    found: list[tuple[tuple[int, ...], Ints]] = []
    for count in np.unique(counts).tolist():
        members = rows[counts == count]
        if count == 0:
            found.append((_FIRST_MESSAGE, members))
            continue
        paths = np.stack([cursor.longs(members, "the message's indexes") for _ in range(count)], axis=1)
        whole = ~cursor.bad[members]
        members, paths = members[whole], paths[whole]
        found.extend((tuple(path.tolist()), members[(paths == path).all(axis=1)]) for path in np.unique(paths, axis=0))
    return found


def _from_headers(headers: pa.Array, count: int, *, indexes: bool) -> dict[SchemaKey | None, Ints]:
    """Return the records of each schema that a header names; under None those whose header is malformed."""
    entries = pc.list_flatten(headers)
    if not len(entries):
        return {}
    parents = pc.list_parent_indices(headers)
    mine = pc.equal(entries.field("key"), HEADER).fill_null(False)
    rows = parents.filter(mine).to_numpy().astype(np.int64)
    if not len(rows):
        return {}
    texts = entries.field("value").filter(mine).dictionary_encode()
    places = texts.indices.fill_null(-1).to_numpy()
    last = np.full(count, -2, np.int64)  # of several headers of the name the last one counts
    last[rows] = places
    found: dict[SchemaKey | None, Ints] = {}
    for place, text in [(-1, b""), *enumerate(texts.dictionary.to_pylist())]:
        members = np.flatnonzero(last == place)
        if len(members):
            key = key_in_header(text, indexes=indexes)
            found[key] = np.concatenate([found[key], members]) if key in found else members
    return found


def key_in_header(text: bytes, *, indexes: bool) -> SchemaKey | None:
    """Return the key that a header's value holds, or None if it is malformed."""
    if text[:1] == b"\x00" and len(text) >= FRAME_BYTES:
        id, guid, rest = int.from_bytes(text[1:5], "big"), "", text[5:]
    elif text[:1] == b"\x01" and len(text) > GUID_BYTES:
        id, guid, rest = -1, str(uuid.UUID(bytes=text[1:17])), text[17:]
    else:
        return None
    if not indexes:
        return SchemaKey(id, guid) if not rest else None
    cursor = Cursor(pa.array([rest], pa.binary()))
    groups = _index_groups(cursor, np.arange(1)) if rest else []
    if cursor.causes or not groups or cursor.positions[0] != cursor.ends[0]:
        return None
    return SchemaKey(id, guid, groups[0][0])


def frame(id: int, indexes: bytes = b"") -> bytes:
    """Return what a value with this schema begins with."""
    return b"\x00" + id.to_bytes(4, "big") + indexes
