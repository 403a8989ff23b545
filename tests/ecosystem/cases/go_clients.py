"""kafka-go and sarama: a producer across a kill of the broker, and a group of which one member is killed."""

from __future__ import annotations

from tests.ecosystem.cases.client_checks import check_client
from tests.ecosystem.installs import go_program
from tests.ecosystem.product import Case, Product

KAFKA_GO_VERSION = "0.4.51"
SARAMA_VERSION = "1.61.1"


def _run_kafka_go(case: Case) -> None:
    module = f"github.com/segmentio/kafka-go@v{KAFKA_GO_VERSION}"
    program = go_program(f"ecosystem-kafka-go-{KAFKA_GO_VERSION}", "kafka_go.go", module)
    check_client(case, [program], is_idempotent=False)


def _run_sarama(case: Case) -> None:
    module = f"github.com/IBM/sarama@v{SARAMA_VERSION}"
    program = go_program(f"ecosystem-sarama-{SARAMA_VERSION}", "sarama.go", module)
    check_client(case, [program], is_idempotent=True)


KAFKA_GO = Product(
    "kafka-go",
    "kafka-go",
    KAFKA_GO_VERSION,
    "producer (zstd, acks=all) across a kill of the broker; a group whose member is killed",
    _run_kafka_go,
)
SARAMA = Product(
    "sarama",
    "sarama",
    SARAMA_VERSION,
    "idempotent producer (snappy) across a kill of the broker; a group whose member is killed",
    _run_sarama,
)
