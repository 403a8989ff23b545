"""A Faust application: adds up the amounts of each customer in a table with a changelog, into another topic."""

import os

import faust

app = faust.App(
    "totals",
    broker=f"kafka://{os.environ['ECOSYSTEM_BROKER']}",
    datadir=os.environ["ECOSYSTEM_FOLDER"],
    store="memory://",
    topic_partitions=4,
    topic_replication_factor=1,
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=0.5,
    broker_session_timeout=6,
    broker_heartbeat_interval=1,
    web_enabled=False,
)
orders = app.topic("orders", key_type=str, key_serializer="raw", value_serializer="json")
totals = app.topic("totals", key_type=str, key_serializer="raw", value_serializer="json")
table = app.Table("amounts", default=int, key_type=str, value_type=int, partitions=4)


@app.agent(orders)
async def add(stream):
    async for customer, order in stream.items():
        table[customer] += order["amount"]
        await totals.send(key=customer, value={"total": table[customer]})


if __name__ == "__main__":
    app.main()
