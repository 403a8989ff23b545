"""A Bytewax dataflow: adds up the amounts of each customer, with recovery, into another topic."""

import json
import os

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow

brokers = [os.environ["ECOSYSTEM_BROKER"]]
flow = Dataflow("totals")
orders = kop.input("orders", flow, brokers=brokers, topics=["orders"], tail=True)
keyed = op.map("key", orders.oks, lambda each: (each.key.decode(), json.loads(each.value)["amount"]))


def add(total, amount):
    total = (total or 0) + amount
    return total, total


totals = op.stateful_map("total", keyed, add)
messages = op.map(
    "message", totals, lambda each: KafkaSinkMessage(each[0].encode(), json.dumps({"total": each[1]}).encode())
)
kop.output("out", messages, brokers=brokers, topic="totals")
