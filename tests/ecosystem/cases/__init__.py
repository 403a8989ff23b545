"""The cases of the ecosystem suite, a module for each kind of product."""

from tests.ecosystem.cases import go_clients, java_products, python_frameworks
from tests.ecosystem.product import Product

PRODUCTS: dict[str, Product] = {
    each.name: each
    for each in (
        go_clients.KAFKA_GO,
        go_clients.SARAMA,
        python_frameworks.QUIX,
        python_frameworks.FASTSTREAM_CONFLUENT,
        python_frameworks.FASTSTREAM_AIOKAFKA,
        python_frameworks.CELERY,
        python_frameworks.BYTEWAX,
        java_products.CONNECT,
        java_products.MIRROR_MAKER,
        *java_products.STREAMS,
    )
}
