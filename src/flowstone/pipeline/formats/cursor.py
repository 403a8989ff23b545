"""Positions in many records at once: the reading end of Avro's binary encoding, without a loop over the records.

A `Cursor` holds the bytes of all values of a batch, and for each record the position of its next byte. An operation
reads the same thing in many records with a few calls of numpy. `rows` selects the records: a slice for all of them, or
their indexes in ascending order.

A record found to be bad gets a cause, its position moves to its end, and everything that is read of it later is zero,
empty or absent. No read goes beyond a record's end unnoticed: positions are checked after each operation.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowstone.pipeline.formats.bad_values import BadValue

Ints: TypeAlias = NDArray[np.int64]
Bits: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
Rows: TypeAlias = Ints | slice

ALL = slice(None)
VARINT_BYTES_MAX = 10
# Reads of up to 16 bytes need no check before they are done.
_PADDING = np.zeros(32, np.uint8)


class Cursor:
    def __init__(self, values: pa.Array) -> None:
        """Start at the first byte of each value. `values` is binary, without NULL."""
        assert values.null_count == 0
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]] if data is not None else _PADDING[:0]
        self.data: Bytes = np.concatenate([used, _PADDING])
        self.positions: Ints = bounds[:-1] - bounds[0]
        self.ends: Ints = bounds[1:] - bounds[0]
        self.bad: Bits = np.zeros(len(values), np.bool_)
        self.causes: dict[int, tuple[BadValue, str]] = {}
        self._buffer = pa.py_buffer(self.data)
        self._last_bytes: Ints | None = None

    def __len__(self) -> int:
        return len(self.bad)

    def count(self, rows: Rows) -> int:
        return len(self.bad) if isinstance(rows, slice) else len(rows)

    def fail(self, rows: Rows, which: Bits | Ints, kind: BadValue, message: str) -> None:
        """Give the records that `which` selects among `rows` their cause, unless they have one."""
        for index in subset(rows, which).tolist():
            if not self.bad[index]:
                self.bad[index] = True
                self.causes[index] = (kind, message)
                self.positions[index] = self.ends[index]

    def longs(self, rows: Rows, what: str) -> Ints:
        """Return the next number of each record, 0 for bad ones. `what` names it in causes."""
        values, after, overlong = self.varints_at(self.positions[rows])
        over = after > self.ends[rows]
        self.positions[rows] = after
        if over.any() or overlong is not None:
            if overlong is not None:
                self.fail(rows, overlong, BadValue.MALFORMED, f"{what}: a number has more than 64 bits")
            self.fail(rows, over, BadValue.MALFORMED, f"{what}: the value ends inside it")
            values[self.bad[rows]] = 0
            self._settle(rows)
        return values

    def varints_at(self, starts: Ints) -> tuple[Ints, Ints, Bits | None]:
        """Return the numbers at these positions, the positions after them, and which are too long, if any is."""
        byte = self.data[starts]
        numbers = (byte & 0x7F).astype(np.uint64)
        after = starts + 1
        more = np.flatnonzero(byte & 0x80)
        overlong = None
        for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
            if not len(more):
                break
            byte = self.data[after[more]]
            numbers[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[more] += 1
            goes_on = byte >= (0x80 if shift < 63 else 2)
            more = more[goes_on]
        if len(more):
            overlong = np.zeros(len(starts), np.bool_)
            overlong[more] = True
        values = (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)
        return values, after, overlong

    def starts_of(self, rows: Rows, lengths: Ints | int, what: str) -> tuple[Ints, Ints]:
        """Pass over `lengths` bytes of each record. Return their starts and lengths; a bad record has no bytes."""
        starts = self.positions[rows]
        sizes = np.full(len(starts), lengths, np.int64) if isinstance(lengths, int) else lengths
        over = (sizes < 0) | (sizes > self.ends[rows] - starts)
        if over.any():
            self.fail(rows, over, BadValue.MALFORMED, f"{what}: the value ends inside it")
            sizes = np.where(self.bad[rows], 0, sizes)
        # A copy: for a slice the positions would change with the next line.
        starts = self.positions[rows].copy()
        self.positions[rows] = starts + sizes
        return starts, sizes

    def slices(self, starts: Ints, sizes: Ints) -> pa.Array:
        """Return the bytes from each start. The starts ascend, and no two overlap."""
        count = len(starts)
        # An array of these bytes and of the gaps between them, without a copy; then a copy of every other element.
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0:-1:2] = starts
        bounds[1::2] = starts + sizes
        bounds[-1] = bounds[-2] if count else 0
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), self._buffer])
        return both.take(pa.array(np.arange(0, 2 * count, 2)))

    def matrix(self, starts: Ints, size: int) -> Bytes:
        """Return the `size` bytes from each start, a row each. `size` is at most 16."""
        assert size <= len(_PADDING) // 2
        found: Bytes = self.data[starts[:, None] + np.arange(size)]
        return found

    def last_bytes(self) -> Ints:
        """Return the positions of all bytes that can be the last one of a number."""
        if self._last_bytes is None:
            self._last_bytes = np.flatnonzero(self.data < 0x80)
        return self._last_bytes

    def finish(self) -> None:
        """Fail the records that have bytes left."""
        left = self.ends - self.positions
        for index in np.flatnonzero(left).tolist():
            message = f"{left[index]} bytes follow the value: it was written with another schema"
            self.fail(ALL, np.array([index]), BadValue.MALFORMED, message)

    def _settle(self, rows: Rows) -> None:
        """Bring the positions of bad records back to their ends."""
        self.positions[rows] = np.where(self.bad[rows], self.ends[rows], self.positions[rows])


def subset(rows: Rows, which: Bits | Ints) -> Ints:
    """Return the indexes of the records that `which`, a mask or indexes, selects among `rows`."""
    found: Ints = np.flatnonzero(which) if which.dtype == np.bool_ else which.astype(np.int64, copy=False)
    return found if isinstance(rows, slice) else rows[found]
