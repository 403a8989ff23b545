"""The cases of the ecosystem suite, a module for each kind of product."""

from tests.ecosystem.cases import (
    go_clients,
    java_frameworks,
    kafka_connect,
    kafka_streams,
    mirror_maker,
    node_clients,
    python_frameworks,
    schema_registry,
    tools,
)
from tests.ecosystem.product import Product

PRODUCTS: dict[str, Product] = {
    each.name: each
    for each in (
        go_clients.KAFKA_GO,
        go_clients.SARAMA,
        node_clients.KAFKAJS,
        node_clients.PLATFORMATIC,
        python_frameworks.QUIX,
        python_frameworks.FAUST,
        python_frameworks.FASTSTREAM_CONFLUENT,
        python_frameworks.FASTSTREAM_AIOKAFKA,
        python_frameworks.CELERY,
        python_frameworks.BYTEWAX,
        kafka_connect.CONNECT,
        mirror_maker.MIRROR_MAKER,
        *kafka_streams.STREAMS,
        *java_frameworks.FLINK,
        java_frameworks.SPRING,
        schema_registry.APICURIO,
        tools.KCAT,
        tools.EXPORTER,
    )
}
