"""kafka-go and sarama: a producer across a kill of the broker, and a group of which one member is killed."""

from __future__ import annotations

from tests.ecosystem.product import Case, Product, go_program

COUNT = 5000
PARTITIONS = 4
TOPIC, GROUP = "numbers", "readers"
KILL_BROKER_AFTER = 1500
KAFKA_GO_VERSION = "0.4.51"
SARAMA_VERSION = "1.61.1"


def _run(case: Case, program: str, *, is_idempotent: bool) -> None:
    case.create_topic(TOPIC, PARTITIONS)
    producer = case.start([program, "produce", case.bootstrap, TOPIC, str(COUNT)], "producer")
    case.wait_until("the producer has written a part", lambda: f"\n{KILL_BROKER_AFTER}\n" in case.output("producer"))
    case.restart_broker()
    case.check("the producer ends well across a kill of the broker", producer.wait(120), 0)
    wanted = {str(number) for number in range(COUNT)}
    stored = case.read_values(TOPIC, COUNT)
    case.check("every record is stored", set(stored), wanted)
    if is_idempotent:
        case.check("no record is stored twice", [each for each, times in stored.items() if times > 1], [])

    consume = [program, "consume", case.bootstrap, TOPIC, "0", GROUP]
    first = case.start(consume, "first")
    case.wait_until("the first member commits", lambda: case.committed(GROUP, TOPIC, PARTITIONS) > 0)
    first.kill()
    committed = case.committed(GROUP, TOPIC, PARTITIONS)
    case.start(consume, "second")

    def seen() -> set[str]:
        return {*case.output("first").split(), *case.output("second").split()}

    case.wait_until("the members have read all records", lambda: wanted <= seen())
    is_exact = len(case.output("second").split()) <= sum(stored.values()) - committed
    case.check("the second member reads nothing that the first has committed", is_exact, True)


def _run_kafka_go(case: Case) -> None:
    module = f"github.com/segmentio/kafka-go@v{KAFKA_GO_VERSION}"
    _run(case, go_program(f"ecosystem-kafka-go-{KAFKA_GO_VERSION}", "kafka_go.go", module), is_idempotent=False)


def _run_sarama(case: Case) -> None:
    module = f"github.com/IBM/sarama@v{SARAMA_VERSION}"
    _run(case, go_program(f"ecosystem-sarama-{SARAMA_VERSION}", "sarama.go", module), is_idempotent=True)


KAFKA_GO = Product(
    "kafka-go",
    KAFKA_GO_VERSION,
    "producer (zstd, acks=all) across a kill of the broker; a group whose member is killed",
    _run_kafka_go,
)
SARAMA = Product(
    "sarama",
    SARAMA_VERSION,
    "idempotent producer (snappy) across a kill of the broker; a group whose member is killed",
    _run_sarama,
)
