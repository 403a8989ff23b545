"""Consume, transform, produce with kafka-python: each order is billed exactly once, whatever fails.

The scene is that of `confluent_loop`.
"""

from __future__ import annotations

from itertools import chain

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka.errors import InvalidProducerEpochError, ProducerFencedError

from examples.patterns import stage
from examples.transactions.scene import BATCH, Price, Result, play


class Worker:
    def __init__(self, bootstrap: str, orders: str, bills: str) -> None:
        self._bills = bills
        self._producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{orders}-1")
        self._producer.init_transactions()  # aborts the previous worker's open transaction and fences that worker
        self._consumer = KafkaConsumer(
            orders,
            bootstrap_servers=bootstrap,
            group_id=orders,
            group_instance_id="1",
            isolation_level="read_committed",
            enable_auto_commit=False,  # the transaction commits the offsets
            auto_offset_reset="earliest",
        )

    def bill(self, price: Price) -> int:
        """Bill the next orders in one transaction; return how many. After an abort, the next call reads them again."""
        batch = self._consumer.poll(stage.TIMEOUT_S * 1000, max_records=BATCH)
        self._producer.begin_transaction()
        try:
            for order in chain.from_iterable(batch.values()):
                self._producer.send(self._bills, price(order.value), order.key)
            read_to = {each: OffsetAndMetadata(self._consumer.position(each), "", -1) for each in batch}
            self._producer.send_offsets_to_transaction(read_to, self._consumer.group_metadata())
            self._producer.commit_transaction()
        except (ProducerFencedError, InvalidProducerEpochError):
            raise  # another worker uses this transactional_id, and has aborted the transaction
        except Exception:
            self._producer.abort_transaction()
            for partition, records in batch.items():
                self._consumer.seek(partition, records[0].offset)
            raise
        return sum(map(len, batch.values()))

    def close(self) -> None:
        self._consumer.close()
        self._producer.close(0)


def run(bootstrap: str) -> Result:
    return play(bootstrap, Worker)


if __name__ == "__main__":
    stage.main(run)
