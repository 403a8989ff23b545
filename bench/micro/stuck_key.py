"""`python -m bench.micro.stuck_key`: what one stuck key of 1,000 costs the delivery of the others in the broker.

Eight members of a key-ordered share partition take 125 records at a time and accept them. Every change goes to the
share coordinator's state machine, encoded as it is stored. There is no network and no disk. In half of the rounds one
record is never acknowledged, so that the start offset stays where it is. Printed is the processor time for each record,
the least of all rounds.
"""

from __future__ import annotations

import time

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.acquisition import Acquired
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.coordinator.share.config import ShareCoordinatorConfig
from flowstone.coordinator.share.messages import InitialState, StateWrite
from flowstone.coordinator.share.record_format import encode_all
from flowstone.coordinator.share.records import ShareKey
from flowstone.coordinator.share.shard import ShareShard

RECORDS, KEYS, MEMBERS, TAKEN = 90_000, 1_000, 8, 125
BATCH, READY_MIN = 128, 500
ROUNDS = 9
KEY = ShareKey("g", bytes(16), 0)
SECONDS_MAX = 60.0


class Delivery:
    def __init__(self) -> None:
        self._shard = ShareShard(ShareCoordinatorConfig())
        self._shard.replay(self._shard.initialize(0, None, InitialState(KEY, 0, 0)).records)
        self._machine = KeyedSharePartition(0, config=ShareConfig())
        self._next_offset = 0
        self._held: dict[str, list[Acquired]] = {}
        self.accepted_count = 0

    def take(self, member: str, count: int) -> None:
        machine = self._machine
        while machine.ready_count < READY_MIN and machine.may_index and self._next_offset < RECORDS:
            first, last = self._next_offset, self._next_offset + BATCH - 1
            machine.index(first, last, [offset % KEYS + 1 for offset in range(first, last + 1)], (), 0)
            self._next_offset = last + 1
        if candidates := machine.candidates(0, count):
            self._held[member] = machine.acquire_spans(member, candidates, 0)

    def accept(self, member: str) -> None:
        machine, acquired = self._machine, self._held.pop(member, [])
        machine.acknowledge(member, [Acknowledgement(first, last, Type.ACCEPT) for first, last, _ in acquired], 0)
        self.accepted_count += sum(last - first + 1 for first, last, _ in acquired)
        if (change := machine.take_write()) is not None:
            start_offset, batches, completed, delays, given_up = change
            write = StateWrite(KEY, 0, 0, start_offset, batches, completed, delays, None, given_up)
            records = self._shard.write(0, None, write).records
            encode_all(records)
            self._shard.replay(records)
            machine.written(True, 0)


def seconds(*, is_one_stuck: bool) -> float:
    """Return the processor time that it takes to deliver and accept all records but those of the stuck key."""
    delivery = Delivery()
    wanted = RECORDS - RECORDS // KEYS - READY_MIN
    started_s = time.process_time()
    if is_one_stuck:
        delivery.take("stuck", 1)
    while delivery.accepted_count < wanted:
        assert time.process_time() - started_s < SECONDS_MAX
        for number in range(MEMBERS):
            member = f"member {number}"
            delivery.accept(member)
            delivery.take(member, TAKEN)
    return time.process_time() - started_s


def main() -> None:
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * ROUNDS):
        is_one_stuck = turn % 4 in (1, 2)
        found[is_one_stuck].append(seconds(is_one_stuck=is_one_stuck))
    free, stuck = (min(found[is_one_stuck]) * 1e6 / RECORDS for is_one_stuck in (False, True))
    print(
        f"{free:.3f} us for each record, {stuck:.3f} with a stuck key: {stuck / free:.3f}x, {stuck - free:.3f} us more"
    )


if __name__ == "__main__":
    main()
