"""kcat, and an exporter of metrics for Prometheus: programs that people run beside their brokers."""

from __future__ import annotations

import os
import re
import urllib.request

from scripts.client_suites.suite import run, tool

from bench.servers import free_ports
from tests.ecosystem.cases.client_checks import COUNT, GROUP, PARTITIONS, TOPIC, check_group, check_stored
from tests.ecosystem.installs import go_tool
from tests.ecosystem.product import Case, Product

KCAT_VERSION, EXPORTER_VERSION = "1.7.1", "1.9.0"
WRITTEN, COMMITTED = 1000, 200
HTTP_TIMEOUT_S = 20


def _run_kcat(case: Case) -> None:
    kcat, pipe = tool("kcat", package="kcat"), case.folder / "numbers"
    case.create_topic(TOPIC, PARTITIONS)
    os.mkfifo(pipe)
    options = ["-z", "zstd", "-H", "origin=kcat", "-X", "enable.idempotence=true"]
    producer = case.start([kcat, "-b", case.bootstrap, "-P", "-E", "-t", TOPIC, *options, "-l", str(pipe)], "producer")
    with pipe.open("w") as lines:
        lines.writelines(f"{number}\n" for number in range(COUNT // 2))
        lines.flush()
        case.restart_broker()
        lines.writelines(f"{number}\n" for number in range(COUNT // 2, COUNT))
    case.check("the producer ends well across a kill of the broker", producer.wait(120), 0)
    stored = check_stored(case, is_idempotent=True)
    told = run([kcat, "-b", case.bootstrap, "-C", "-t", TOPIC, "-q", "-e", "-o", "beginning", "-f", "%h\n"])
    case.check("every record has its header", (set(told.split()), len(told.split())), ({"origin=kcat"}, COUNT))
    group = ["-G", GROUP, "-q", "-u", "-X", "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=200"]
    sessions = ["-X", "session.timeout.ms=6000", "-f", "%s\n"]
    check_group(case, [kcat, "-b", case.bootstrap, *group, *sessions, TOPIC], stored)


class _Metrics:
    """The exporter's metrics, read anew for each question."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def total(self, name: str, **labels: str) -> int | None:
        """Return the sum of a metric's values with these labels, or None if there is none."""
        try:
            with urllib.request.urlopen(self._url, timeout=HTTP_TIMEOUT_S) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        values = [
            float(value)
            for found, value in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
            if all(f'{label}="{wanted}"' in found for label, wanted in labels.items())
        ]
        return round(sum(values)) if values else None


def _run_exporter(case: Case) -> None:
    module = f"github.com/danielqsj/kafka_exporter@v{EXPORTER_VERSION}"
    exporter = go_tool(f"ecosystem-kafka-exporter-{EXPORTER_VERSION}", module)
    case.create_topic(TOPIC, PARTITIONS)
    case.produce(TOPIC, [(str(number), str(number)) for number in range(WRITTEN)])
    case.commit(GROUP, TOPIC, [COMMITTED // PARTITIONS] * PARTITIONS)
    (port,) = free_ports(1)
    metrics = _Metrics(port)
    listen = [f"--web.listen-address=127.0.0.1:{port}", "--refresh.metadata=1s"]

    def check(when: str, written: int) -> None:
        wanted = {
            ("kafka_brokers", ()): 1,
            ("kafka_topic_partitions", (("topic", TOPIC),)): PARTITIONS,
            ("kafka_topic_partition_current_offset", (("topic", TOPIC),)): written,
            ("kafka_topic_partition_oldest_offset", (("topic", TOPIC),)): 0,
            ("kafka_topic_partition_in_sync_replica", (("topic", TOPIC),)): PARTITIONS,
            ("kafka_consumergroup_current_offset", (("consumergroup", GROUP), ("topic", TOPIC))): COMMITTED,
            ("kafka_consumergroup_lag", (("consumergroup", GROUP), ("topic", TOPIC))): written - COMMITTED,
        }

        def found() -> dict[tuple[str, tuple[tuple[str, str], ...]], int | None]:
            return {(name, labels): metrics.total(name, **dict(labels)) for name, labels in wanted}

        case.wait_until(f"the metrics are right {when}: {found()}", lambda: found() == wanted, 60)
        case.check(f"offsets, lag and replicas are right {when}", found(), wanted)

    first = case.start([exporter, f"--kafka.server={case.bootstrap}", *listen], "first")
    check("at first", WRITTEN)
    case.restart_broker()
    case.produce(TOPIC, [(str(number), str(number)) for number in range(WRITTEN)])
    check("after a kill of the broker", 2 * WRITTEN)
    first.kill()
    first.wait()
    case.start([exporter, f"--kafka.server={case.bootstrap}", *listen], "second")
    check("after a kill of the exporter", 2 * WRITTEN)


KCAT = Product(
    "kcat",
    "kcat",
    KCAT_VERSION,
    "idempotent producer (zstd, headers) across a kill of the broker; a group (-G) whose member is killed",
    _run_kcat,
)
EXPORTER = Product(
    "kafka_exporter",
    "kafka_exporter",
    EXPORTER_VERSION,
    "offsets, lag and replicas of topics and groups as metrics: a killed broker, a killed exporter",
    _run_exporter,
)
