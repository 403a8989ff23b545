"""Event sourcing: state is derived from events, and a restart does not need to read all events again.

Deposits and withdrawals are written to a topic of events. A service applies them to accounts and writes each changed
account to a compacted topic with its name as the key: compaction keeps the last state of each. When a service starts,
it reads that topic, has every account, and continues with the first event that is in no state. A closed account is a
tombstone: a key without a value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from examples.patterns import stage

EVENTS = [
    {"account": "alice", "cents": 500},
    {"account": "bob", "cents": 900},
    {"account": "alice", "cents": -120},
    {"account": "carol", "cents": 70},
    {"account": "bob", "cents": None},  # closed
    {"account": "alice", "cents": 20},
]
SEEN_BEFORE_THE_STOP = 4

State = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Result:
    balances: dict[str, int]
    rebuilt: dict[str, int]
    events_read_again: int


class Accounts:
    """The aggregate: restored from its states, then updated by events, each of which produces a new state."""

    def __init__(self, bootstrap: str, states: str) -> None:
        self._states = states
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self.state: State = {}
        self.next_event = 0
        for message in read(bootstrap, states):
            state = json.loads(message.value()) if message.value() is not None else None
            apply(self.state, message.key().decode(), state)
            seen = int(dict(message.headers())["event"])  # a tombstone has no value to keep it in
            self.next_event = max(self.next_event, seen + 1)

    def handle(self, offset: int, event: dict[str, str | int | None]) -> None:
        account, cents = str(event["account"]), event["cents"]
        before = self.state.get(account, {"cents": 0})["cents"]
        after = {"cents": before + int(cents)} if cents is not None else None
        apply(self.state, account, after)
        value = json.dumps(after) if after is not None else None
        self._producer.produce(self._states, key=account, value=value, headers={"event": str(offset)})
        self._producer.flush(stage.TIMEOUT_S)

    @property
    def balances(self) -> dict[str, int]:
        return {account: state["cents"] for account, state in sorted(self.state.items())}


def apply(state: State, account: str, new: dict[str, int] | None) -> None:
    if new is None:
        state.pop(account, None)
    else:
        state[account] = new


def read(bootstrap: str, topic: str, start: int = OFFSET_BEGINNING) -> list[Any]:
    """Return all available records from `start`, without waiting for more."""
    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, **stage.QUICK}
    messages = []
    with Consumer(config) as consumer:
        consumer.assign([TopicPartition(topic, 0, start)])
        while True:
            message = consumer.poll(stage.TIMEOUT_S)
            if message is None:
                raise TimeoutError(f"{topic} was not read in {stage.TIMEOUT_S} s")
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return messages
            else:
                raise RuntimeError(error)


def run(bootstrap: str) -> Result:
    events = stage.new_topic(bootstrap, "events")
    states = stage.new_topic(bootstrap, "accounts", configs={"cleanup.policy": "compact"})
    stage.send(bootstrap, events, map(json.dumps, EVENTS))

    first = Accounts(bootstrap, states)
    for message in read(bootstrap, events)[:SEEN_BEFORE_THE_STOP]:
        first.handle(message.offset(), json.loads(message.value()))
    print(f"the first service stops after {SEEN_BEFORE_THE_STOP} events: {first.balances}")

    second = Accounts(bootstrap, states)
    rebuilt = second.balances
    print(f"the next one has from the compacted topic: {rebuilt}")
    left = read(bootstrap, events, second.next_event)
    for message in left:
        second.handle(message.offset(), json.loads(message.value()))
    print(f"and after the {len(left)} events that were left: {second.balances}")
    return Result(second.balances, rebuilt, len(EVENTS) - SEEN_BEFORE_THE_STOP - len(left))


if __name__ == "__main__":
    stage.main(run)
