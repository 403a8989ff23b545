"""A Quix Streams application: adds up the amounts of each customer in state, exactly once, into another topic."""

import sys

from quixstreams import Application

bootstrap, source, target, state = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group="totals",
    auto_offset_reset="earliest",
    processing_guarantee="exactly-once",
    state_dir=state,
    commit_interval=0.5,
    consumer_extra_config={"session.timeout.ms": 6000},
)


def add(row, state):
    total = state.get("total", 0) + row["amount"]
    state.set("total", total)
    return {"total": total}


orders = app.dataframe(app.topic(source, value_deserializer="json", key_deserializer="string"))
totals = orders.apply(add, stateful=True)
totals.to_topic(app.topic(target, value_serializer="json", key_serializer="string"))
app.run()
