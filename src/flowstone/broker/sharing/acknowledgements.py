"""Acknowledgements as clients send them: ranges of offsets with one type for all, or one type for each offset. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, Protocol

from flowstone.errors import ApiError, ErrorCode


class Type(IntEnum):
    GAP = 0  # there is no such record, because of compaction for example
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Acknowledgement(NamedTuple):
    """One type for consecutive offsets."""

    first: int
    last: int
    type: Type


class AcknowledgementBatch(Protocol):
    """The part of a request's batch that is read here."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


# Types and ranges that a request may have for one partition: a member holds at most so many records of it, the highest
# value of group.share.partition.max.record.locks.
ACKNOWLEDGEMENTS_MAX = 10_000

_TYPES = {each.value: each for each in Type}


def parse(batches: Sequence[AcknowledgementBatch]) -> list[Acknowledgement]:
    """Return the acknowledgements by offset, each as long as possible. Raises ApiError if they are malformed."""
    if sum(max(1, len(batch.acknowledge_types)) for batch in batches) > ACKNOWLEDGEMENTS_MAX:
        message = f"A request has at most {ACKNOWLEDGEMENTS_MAX} acknowledgements for a partition."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    parsed: list[Acknowledgement] = []
    after = -1
    for batch in batches:
        first, last = batch.first_offset, batch.last_offset
        if not 0 <= first <= last:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"An acknowledgement has the offsets {first} to {last}.")
        if first <= after:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Acknowledgements overlap at offset {first}.")
        after = last
        parsed += _runs(first, last, batch.acknowledge_types)
    return parsed


def _runs(first: int, last: int, types: Sequence[int]) -> Iterator[Acknowledgement]:
    if len(types) == 1:
        yield Acknowledgement(first, last, _type(types[0]))
        return
    if len(types) != last - first + 1:
        message = f"There are {len(types)} acknowledgement types for the offsets {first} to {last}."
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    for number, run in groupby(types):
        size = sum(1 for _ in run)
        yield Acknowledgement(first, first + size - 1, _type(number))
        first += size


def _type(number: int) -> Type:
    try:
        return _TYPES[number]
    except KeyError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"There is no acknowledgement type {number}.") from None
