"""Readers of Avro's arrays and maps, which come in blocks: a count, so many items, and so on until a count of zero.

The first item of all records is read, then the second of those that have one, and so on. Numbers, which make up the
long arrays, are read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flowstone.pipeline.formats.avro.nodes import FloatNode, LongNode, Node, joined, within
from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.cursor import Cursor, Ints, Rows, subset


@dataclass(frozen=True)
class ArrayNode:
    type: pa.DataType
    what: str
    items: Node
    item_bytes_min: int

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        offsets, [items] = read_blocks(cursor, rows, (self.items,), self.item_bytes_min, self.what)
        return pa.ListArray.from_arrays(offsets, items, type=self.type)


@dataclass(frozen=True)
class MapNode:
    type: pa.DataType
    what: str
    keys: Node
    values: Node
    value_bytes_min: int

    def read(self, cursor: Cursor, rows: Rows) -> pa.Array:
        nodes = (self.keys, self.values)
        offsets, [keys, items] = read_blocks(cursor, rows, nodes, 1 + self.value_bytes_min, self.what)
        if keys.null_count:  # of bad records
            keys = keys.fill_null("")
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.type)


def read_blocks(
    cursor: Cursor, rows: Rows, nodes: tuple[Node, ...], bytes_min: int, what: str
) -> tuple[pa.Array, list[pa.Array]]:
    """Return the offsets of each record's items, and the items of all records, an array for each node."""
    count = cursor.count(rows)
    open_ = np.arange(count)
    pieces: list[list[pa.Array]] = [[] for _ in nodes]
    owners: list[Ints] = []
    while len(open_):
        open_, items = _block(cursor, subset(rows, open_), open_, bytes_min, what)
        if len(nodes) == 1 and isinstance(nodes[0], LongNode | FloatNode) and len(open_):
            here = subset(rows, open_)
            numbers, good = _numbers(cursor, here, items, nodes[0])
            pieces[0].append(numbers)
            open_, items = open_[good], items[good]
            owners.append(np.repeat(open_, items))
            continue
        left, counts = open_, items
        while len(left):
            here = subset(rows, left)
            for node, found in zip(nodes, pieces, strict=True):
                found.append(node.read(cursor, here))
            owners.append(left)
            goes_on = (counts > 1) & ~cursor.bad[here]
            left, counts = left[goes_on], counts[goes_on] - 1
    if not owners:
        return pa.array(np.zeros(count + 1, np.int32)), [pa.nulls(0, each.type) for each in nodes]
    owner = np.concatenate(owners)
    order = pa.array(np.argsort(owner, kind="stable"))
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.cumsum(np.bincount(owner, minlength=count))
    arrays = [joined(found, node.type).take(order) for node, found in zip(nodes, pieces, strict=True)]
    return pa.array(offsets), arrays


def _block(cursor: Cursor, here: Ints, open_: Ints, bytes_min: int, what: str) -> tuple[Ints, Ints]:
    """Read the counts of a block. Return the records that have items in it, and how many."""
    counts = cursor.longs(here, what)
    sized = np.flatnonzero(counts < 0)
    if len(sized):  # such a count is followed by the block's bytes
        cursor.longs(here[sized], what)
        counts[sized] = -counts[sized]
    # The smallest number has no positive one.
    over = (counts < 0) | (counts > (cursor.ends[here] - cursor.positions[here]) // bytes_min)
    if over.any():
        cursor.fail(here, over, BadValue.MALFORMED, f"{what}: the value ends inside it")
    goes_on = (counts > 0) & ~cursor.bad[here]
    return open_[goes_on], counts[goes_on]


def _numbers(cursor: Cursor, here: Ints, counts: Ints, node: LongNode | FloatNode) -> tuple[pa.Array, Ints]:
    """Return the numbers of a block, and which records they are of: those that do not end inside it."""
    if isinstance(node, FloatNode):
        # `_block` has compared the count with the bytes that are left.
        starts = np.repeat(cursor.positions[here], counts) + within(counts) * node.size
        cursor.positions[here] += counts * node.size
        return node.array(cursor, starts), np.arange(len(here))
    whole = node.whole(cursor, here, counts)
    return node.read_many(cursor, here[whole], counts[whole]), whole
