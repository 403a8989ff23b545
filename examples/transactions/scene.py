"""The scene that each program plays with its own client: orders are billed, with an abort and a suspended worker.

All code about transactions is in the programs themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import flowstone
from examples.patterns import stage

BATCH = 5

Price = Callable[[bytes], bytes]


class Worker(Protocol):
    def bill(self, price: Price) -> int:
        """Bill the next orders in one transaction; return how many."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Result:
    bills: list[int]  # as a read_committed consumer sees them
    fenced_with: Exception


class NoPrice(Exception):
    pass


def double(order: bytes) -> bytes:
    return b"%d" % (2 * int(order))


def unknown_from_two_on(order: bytes) -> bytes:
    if int(order) >= 2:
        raise NoPrice(order.decode())
    return double(order)


class Suspended:
    """A price that is not returned until the program is resumed, like one of a machine that stands still."""

    def __init__(self) -> None:
        self.is_asked, self.is_resumed = threading.Event(), threading.Event()

    def price(self, order: bytes) -> bytes:
        if int(order) % BATCH == 2:
            self.is_asked.set()
            self.is_resumed.wait(stage.TIMEOUT_S)
        return double(order)


def play(bootstrap: str, start: Callable[[str, str, str], Worker]) -> Result:
    """Play the scene with workers from `start(bootstrap, orders, bills)`."""
    orders, bills = stage.new_topic(bootstrap, "orders"), stage.new_topic(bootstrap, "bills")
    stage.send(bootstrap, orders, range(2 * BATCH))
    first = start(bootstrap, orders, bills)
    try:
        first.bill(unknown_from_two_on)
    except NoPrice as unknown:
        print(f"the first worker aborts a transaction: no price for order {unknown}")
    print(f"it bills the same orders again: {first.bill(double)} in a transaction")
    print("it is suspended in its next transaction")
    suspended = Suspended()
    with ThreadPoolExecutor(1) as elsewhere:
        billing = elsewhere.submit(first.bill, suspended.price)
        try:
            assert suspended.is_asked.wait(stage.TIMEOUT_S)
            second = start(bootstrap, orders, bills)
            print(f"a second worker takes its place and bills {second.bill(double)} orders")
        finally:
            suspended.is_resumed.set()
        fenced_with = billing.exception()
    assert isinstance(fenced_with, Exception)
    print(f"the first worker goes on, and is fenced: {type(fenced_with).__name__}")
    first.close()
    second.close()
    committed = committed_bills(bootstrap, bills)
    print(f"committed bills: {committed}")
    return Result(committed, fenced_with)


def committed_bills(bootstrap: str, bills: str) -> list[int]:
    """Return all bills that are committed, once there is one for each order."""
    config = {"bootstrap.servers": bootstrap, "group.id": bills, "isolation.level": "read_committed"}
    with Consumer(config) as reader:  # records can be read soon after their commit has been answered
        reader.assign([TopicPartition(bills, 0, OFFSET_BEGINNING)])
        assert len(stage.take(reader, 2 * BATCH)) == 2 * BATCH
    found = flowstone.read(bills, columns=["value"], read_committed=True, bootstrap=bootstrap)
    return [int(value) for value in found["value"].to_pylist()]
