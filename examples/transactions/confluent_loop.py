"""Consume, transform, produce with confluent-kafka: each order is billed exactly once, whatever fails.

The first worker aborts a transaction, and bills the orders in another. Then it is suspended in the middle of a
transaction. A second worker takes its place, and the first is fenced when it goes on.
"""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from examples.patterns import stage
from examples.transactions.scene import BATCH, Price, Result, play


class Worker:
    def __init__(self, bootstrap: str, orders: str, bills: str) -> None:
        self._bills = bills
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = Producer({**common, "transactional.id": f"{orders}-1"})
        self._producer.init_transactions()  # aborts the previous worker's open transaction and fences that worker
        self._consumer = Consumer(
            {
                **common,
                "group.id": orders,
                "group.instance.id": "1",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,  # the transaction commits the offsets
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.subscribe([orders])

    def bill(self, price: Price) -> int:
        """Bill the next orders in one transaction; return how many. After an abort, the next call reads them again."""
        batch = stage.take(self._consumer, BATCH)
        self._producer.begin_transaction()
        try:
            for order in batch:
                self._producer.produce(self._bills, price(order.value()), order.key())
            read_to = self._consumer.position(self._consumer.assignment())
            self._producer.send_offsets_to_transaction(read_to, self._consumer.consumer_group_metadata())
            self._producer.commit_transaction()
        except Exception as error:
            if isinstance(error, KafkaException) and error.args[0].fatal():
                raise  # fenced: another worker uses this transactional.id, and has aborted the transaction
            self._producer.abort_transaction()
            for order in reversed(batch):  # the last seek of a partition is to its first order
                self._consumer.seek(TopicPartition(order.topic(), order.partition(), order.offset()))
            raise
        return len(batch)

    def close(self) -> None:
        self._consumer.close()


def run(bootstrap: str) -> Result:
    return play(bootstrap, Worker)


if __name__ == "__main__":
    stage.main(run)
