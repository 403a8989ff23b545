"""Avro records with confluent-kafka's serializers and a schema registry; prints what it read as lines of JSON.

`produce BROKER REGISTRY FIRST COUNT FORM` writes orders of a schema, `consume BROKER REGISTRY COUNT` reads
all orders, and `register REGISTRY FORM` prints the id of a schema, or the registry's status if it is refused.
"""

import json
import sys

from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

FIELDS = {
    "plain": [{"name": "number", "type": "long"}],
    "noted": [{"name": "number", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
    "other": [{"name": "number", "type": "string"}],
}
TIMEOUT_S = 60


def schema(form):
    return json.dumps({"type": "record", "name": "Order", "fields": FIELDS[form]})


def produce(broker, registry, first, count, form):
    serializer = AvroSerializer(SchemaRegistryClient({"url": registry}), schema(form))
    producer = SerializingProducer({"bootstrap.servers": broker, "value.serializer": serializer})
    for number in range(int(first), int(first) + int(count)):
        value = {"number": number} if form == "plain" else {"number": number, "note": f"note {number}"}
        producer.produce("orders", value=value)
    sys.exit(producer.flush(TIMEOUT_S))


def consume(broker, registry, count):
    settings = {
        "bootstrap.servers": broker,
        "group.id": "orders",
        "auto.offset.reset": "earliest",
        "value.deserializer": AvroDeserializer(SchemaRegistryClient({"url": registry}), schema("noted")),
    }
    consumer = DeserializingConsumer(settings)
    consumer.subscribe(["orders"])
    for _ in range(int(count)):
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            sys.exit("too few orders")
        print(json.dumps(message.value()))
    consumer.close()


def register(registry, form):
    try:
        print(SchemaRegistryClient({"url": registry}).register_schema("orders-value", Schema(schema(form), "AVRO")))
    except SchemaRegistryError as error:
        print(f"status {error.http_status_code}")


{"produce": produce, "consume": consume, "register": register}[sys.argv[1]](*sys.argv[2:])
