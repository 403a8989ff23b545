"""What may be in a broker's logs, given what producers were told and consumers saw. Pure and linear.

Every value names its producer and its place in what that producer sent to the partition, so a log speaks for itself: a
`History` only has to keep how much was sent, what was acknowledged and what was seen. A producer session never leaves
anything out: whatever it sends to a partition is in the log in the order sent, each once, without a hole, up to some
point. What was sent and never answered is unknown, not failed: it may be there or not.

`check` says what is wrong (S1 to S3, S8); an empty list is the only good answer. What it has read counts as seen from
then on, so the next check also holds the log to what the last one found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from flowstone.types import TopicPartition

ACKS_ALL = -1
VALUE_BYTES_MAX = 4096
_SIZE_STEP = 389  # a prime: sizes of consecutive values differ


class Fault(Enum):
    """What happened to the broker since its acknowledgements: it decides which of them are promises."""

    KILL = "the process was killed"
    POWER_LOSS = "the power failed"


class Origin(NamedTuple):
    """A record's identity: the `sequence`-th value that `producer` sent to its partition."""

    producer: str
    sequence: int


class Anomaly(NamedTuple):
    kind: str
    partition: TopicPartition
    offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.partition} at {self.offset}: {self.detail}"


class ObservedLog(NamedTuple):
    """A whole partition as a consumer reads it, and what the broker says of its ends."""

    log_start_offset: int
    end_offset: int
    records: Sequence[tuple[int, bytes]]


def make_value(origin: Origin) -> bytes:
    """Bytes that only this origin has, of a size of its own."""
    name = f"{origin.producer}/{origin.sequence}/".encode()
    size_bytes = len(name) + (origin.sequence * _SIZE_STEP + len(origin.producer)) % VALUE_BYTES_MAX
    return (name * (size_bytes // len(name) + 1))[:size_bytes]


def origin_of(value: bytes) -> Origin | None:
    """None for bytes that no producer made."""
    producer, _, rest = value.partition(b"/")
    digits = rest.partition(b"/")[0]
    if not digits.isdigit():
        return None
    origin = Origin(producer.decode(errors="replace"), int(digits))
    return origin if make_value(origin) == value else None


class Acknowledged(NamedTuple):
    partition: TopicPartition
    offset: int
    origin: Origin
    acks: int
    life: int  # the broker's, counted by its starts

    def survives(self, fault: Fault) -> bool:
        """Whether it is promised to be there after the fault: acks=1 does not wait for the disk."""
        return fault is Fault.KILL or self.acks == ACKS_ALL


class History:
    """What clients know. Threads only append; everything else is for the thread that checks."""

    def __init__(self) -> None:
        self.sent: dict[tuple[TopicPartition, str], int] = {}  # how many values
        self.acknowledged: list[Acknowledged] = []
        self.unplaced: dict[TopicPartition, set[Origin]] = {}  # acknowledged for good, wherever they are
        self.seen: list[tuple[TopicPartition, int, Origin | None]] = []
        self.life = 0
        self._promised: dict[TopicPartition, dict[int, Acknowledged]] = {}
        self._observed: dict[TopicPartition, dict[int, Origin | None]] = {}
        self.acknowledged_count = 0

    def next_origin(self, partition: TopicPartition, producer: str) -> Origin:
        """The origin of the next value; to be asked for before it is sent."""
        count = self.sent.get((partition, producer), 0)
        self.sent[partition, producer] = count + 1
        return Origin(producer, count)

    def acknowledge(self, partition: TopicPartition, offset: int | None, origin: Origin, acks: int) -> None:
        """A broker that has heard it before, but so long ago that it has forgotten where it is, tells no offset.

        After a restart that is soon: what a producer snapshot remembers of each producer is its last batch. With acks=1
        nothing is made of it.
        """
        if offset is not None:
            self.acknowledged.append(Acknowledged(partition, offset, origin, acks, self.life))
        elif acks == ACKS_ALL:
            self.unplaced.setdefault(partition, set()).add(origin)

    @property
    def unplaced_count(self) -> int:
        return sum(map(len, self.unplaced.values()))

    def see(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        self.seen.append((partition, offset, origin_of(value)))

    def check(self, logs: Mapping[TopicPartition, ObservedLog], fault: Fault) -> list[Anomaly]:
        """Every anomaly in the `logs`, which are all that can be read, after the fault that ended the life before.

        Clients must be at rest.
        """
        anomalies = self._take_in(fault)
        for partition in {*self._promised, *self._observed, *self.unplaced} - logs.keys():
            anomalies.append(Anomaly("lost partition", partition, 0, "nothing of it can be read"))
        for partition, log in logs.items():
            origins = {offset: origin_of(value) for offset, value in log.records}
            anomalies += self._check_order(partition, log, origins)
            anomalies += self._check_promises(partition, log, origins, fault)
            anomalies += self._check_unplaced(partition, log, origins)
            anomalies += _check_seen(partition, log, origins, self._observed.get(partition, {}))
            self._observed[partition] = origins
        return anomalies

    def _take_in(self, fault: Fault) -> list[Anomaly]:
        """Sorts what came since the last check by offset; one offset never has two values (S3)."""
        anomalies = []
        self.acknowledged_count += len(self.acknowledged)
        for each in self.acknowledged:
            promised = self._promised.setdefault(each.partition, {})
            before = promised.setdefault(each.offset, each)
            if each.life > before.life and not before.survives(fault):
                promised[each.offset] = each  # its offset was lost with it, and may be given again
            elif before.origin != each.origin:
                detail = f"acknowledged as {before.origin} and as {each.origin}"
                anomalies.append(Anomaly("two values at one offset", each.partition, each.offset, detail))
        for partition, offset, origin in self.seen:
            first = self._observed.setdefault(partition, {}).setdefault(offset, origin)
            if first != origin:
                detail = f"seen as {first} and as {origin}"
                anomalies.append(Anomaly("two values at one offset", partition, offset, detail))
        self.acknowledged, self.seen = [], []
        return anomalies

    def _check_order(
        self, partition: TopicPartition, log: ObservedLog, origins: Mapping[int, Origin | None]
    ) -> list[Anomaly]:
        """Offsets without a hole; each producer's values in the order sent, each once (S2)."""
        anomalies = []
        if len(origins) != len(log.records) or (log.records and log.records[-1][0] >= log.end_offset):
            anomalies.append(Anomaly("disorder", partition, log.end_offset, "offsets repeat or pass the end"))
        expected_offset, expected_sequences = log.log_start_offset, dict[str, int]()
        for offset, origin in origins.items():
            if offset != expected_offset:
                anomalies.append(Anomaly("hole", partition, offset, f"follows {expected_offset - 1}"))
            expected_offset = offset + 1
            if origin is None or origin.sequence >= self.sent.get((partition, origin.producer), 0):
                anomalies.append(Anomaly("phantom", partition, offset, f"{origin} was never sent"))
                continue
            expected = expected_sequences.get(origin.producer, 0 if log.log_start_offset == 0 else origin.sequence)
            if origin.sequence != expected:
                kind = "duplicate" if origin.sequence < expected else "skipped value"
                anomalies.append(Anomaly(kind, partition, offset, f"{origin} where {expected} was due"))
            expected_sequences[origin.producer] = origin.sequence + 1
        if expected_offset != log.end_offset:
            detail = f"nothing is readable from {expected_offset} on"
            anomalies.append(Anomaly("unreadable end", partition, log.end_offset, detail))
        return anomalies

    def _check_promises(
        self, partition: TopicPartition, log: ObservedLog, origins: Mapping[int, Origin | None], fault: Fault
    ) -> list[Anomaly]:
        """Everything acknowledged is at its offset (S1), which implies that the end did not go back (S3)."""
        anomalies = []
        promised = self._promised.setdefault(partition, {})
        for offset, each in list(promised.items()):
            if offset >= log.end_offset and each.life < self.life and not each.survives(fault):
                del promised[offset]
            elif offset not in origins and offset >= log.log_start_offset:
                detail = f"{each.origin}, acks={each.acks}; the log ends at {log.end_offset}"
                anomalies.append(Anomaly("lost write", partition, offset, detail))
            elif offset in origins and origins[offset] != each.origin:
                detail = f"{each.origin} was acknowledged, {origins[offset]} is there"
                anomalies.append(Anomaly("altered write", partition, offset, detail))
        return anomalies

    def _check_unplaced(
        self, partition: TopicPartition, log: ObservedLog, origins: Mapping[int, Origin | None]
    ) -> list[Anomaly]:
        """What is acknowledged without an offset is somewhere, or was in what a log has lost at its beginning."""
        if log.log_start_offset > 0:
            return []
        missing = self.unplaced.get(partition, set()).difference(origins.values())
        return [Anomaly("lost write", partition, -1, f"{origin}") for origin in missing]


def _check_seen(
    partition: TopicPartition,
    log: ObservedLog,
    origins: Mapping[int, Origin | None],
    seen: Mapping[int, Origin | None],
) -> list[Anomaly]:
    """Nothing a consumer has seen was taken back or is now something else (S8)."""
    return [
        Anomaly("taken back", partition, offset, f"{origin} was seen, {origins.get(offset)} is there")
        for offset, origin in seen.items()
        if offset >= log.log_start_offset and origins.get(offset) != origin
    ]
