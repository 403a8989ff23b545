"""Publish and subscribe: every group reads every record at its own pace from one copy of the data.

Billing and shipping both read the orders. Billing stops and restarts; a third subscriber, added later, still gets all
orders from the first one.
"""

from __future__ import annotations

from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from examples.patterns import stage


@dataclass(frozen=True)
class Result:
    billing: list[str]
    billing_later: list[str]
    shipping: list[str]
    audit: list[str]
    stored: int


def read(bootstrap: str, topic: str, subscriber: str, count: int) -> list[str]:
    """Return the next records of a subscriber."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{subscriber}-of-{topic}",  # each subscriber has its own group
        "auto.offset.reset": "earliest",  # a new subscriber begins with the oldest record; "latest": with new ones
        "enable.auto.commit": False,
        **stage.QUICK,
    }
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        orders = [message.value().decode() for message in stage.take(consumer, count)]
        consumer.commit(asynchronous=False)  # this subscriber's place; nobody else's moves
    print(f"{subscriber:8} gets {', '.join(orders)}")
    return orders


def run(bootstrap: str) -> Result:
    topic = stage.new_topic(bootstrap, "orders")
    stage.send(bootstrap, topic, ["tea", "coffee", "cake"])
    billing = read(bootstrap, topic, "billing", 3)

    stage.send(bootstrap, topic, ["jam", "bread"])
    shipping = read(bootstrap, topic, "shipping", 5)
    billing_later = read(bootstrap, topic, "billing", 2)
    audit = read(bootstrap, topic, "audit", 5)

    with Consumer({"bootstrap.servers": bootstrap, "group.id": "-"}) as consumer:
        first, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=stage.TIMEOUT_S)
    print(f"the topic has {end - first} records, however many read them")
    return Result(billing, billing_later, shipping, audit, end - first)


if __name__ == "__main__":
    stage.main(run)
