"""`python -m bench.tls`: compares Flowstone with Apache Kafka over TLS, and checks the gates.

Both have the same key and certificate, TLS 1.3 and no client certificates. Two connections produce batches of 16 KB,
64 KB and 1 MB in a pipeline, and then fetch them; docs/benchmarks.md describes the method. CPU is that of the broker.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from scripts.fetch_kafka import KAFKA_VERSION

from bench import wire
from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.connection import Connection
from bench.gates import Gate, Verdict
from bench.load import Figures, measure
from bench.modes import FLOWSTONE, KAFKA, NOT_FLUSHED
from bench.rounds import Turns
from bench.servers import Flowstone, Kafka, Server, free_ports
from bench.topics import fresh_topic
from bench.workers import Load, work
from bench.workloads import BATCH_BYTES, VALUE_BYTES, Workload, pipelined_variant
from flowstone.ports.certificates import Authority
from flowstone.ports.secret_files import write_secret

TITLE = "Flowstone and Apache Kafka over TLS"
TLS = "TLS"
ROUNDS, QUICK_ROUNDS, QUICK_SHARE = 5, 3, 3
GATES = (
    Gate(TLS, NOT_FLUSHED.name, None, "produce_mb_per_s", ">=", 1.0),
    Gate(TLS, NOT_FLUSHED.name, None, "fetch_cpu_s_per_gb", "<=", 1.0),
)


class TlsFlowstone(Flowstone):
    """Flowstone with a listener with TLS beside the plain one."""

    def _prepare(self) -> list[str]:
        command = super()._prepare()
        return [*command, "--set", f"listeners=PLAINTEXT://{self.address}{self.more_listeners}"]


SERVERS: dict[str, type[Server]] = {FLOWSTONE: TlsFlowstone, KAFKA: Kafka}


class TlsConnection(Connection):
    """A connection over TLS. The certificate is not checked, which costs the same for both brokers."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._tls = context.wrap_socket(self._sock)
        self._sock: socket.socket = self._tls

    def send(self, *parts: bytes | bytearray) -> None:
        self._tls.sendall(b"".join(parts))

    def _receive_exactly(self, count: int) -> None:
        view = memoryview(self.buffer)
        got = 0
        while got < count:
            some = self._tls.recv_into(view[got:count])
            if not some:
                raise ConnectionError("the broker closed the connection")
            got += some


def run_round(server: Server, load: Load) -> Figures:
    address = server.more_listeners.removeprefix(",SSL://")
    with fresh_topic(server, load.partitions) as topic:
        work_over_tls = partial(work, address, load, topic, connect=TlsConnection)
        return measure(server, work_over_tls, load.connections, load.total_bytes)


def catalogue(share: int, sizes: Sequence[int]) -> Iterator[Workload]:
    """Yield the workload for each batch size, each round at 1/`share` of its full size."""
    for batch_bytes in sizes:
        batch = wire.record_batch(batch_bytes, VALUE_BYTES, int(time.time() * 1000))
        load = Load(batch, NOT_FLUSHED.round_bytes // share, NOT_FLUSHED.acks)
        run = partial(run_round, load=load)
        yield Workload(TLS, pipelined_variant(batch_bytes), NOT_FLUSHED, "produce_mb_per_s", run)


@contextmanager
def running(names: Sequence[str]) -> Iterator[dict[str, Server]]:
    """Start the brokers, each with a listener with TLS beside the plain one, through which topics are created."""
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder, ExitStack() as stack:
        pem = Path(folder, "server.pem")
        write_secret(str(pem), Authority.create().issue("broker", ["localhost", "127.0.0.1"]).pem)
        settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem), "ssl.client.auth": "none"}
        servers = {}
        for name in names:
            server = SERVERS[name]({**NOT_FLUSHED.settings[name], **settings})
            server.more_listeners = f",SSL://127.0.0.1:{free_ports(1)[0]}"
            servers[name] = stack.enter_context(server)
        yield servers


def measure_all(chosen: argparse.Namespace) -> Outcome:
    failures: list[str] = []
    cases: list[Case] = []
    names = [chosen.only] if chosen.only else list(SERVERS)
    with running(names) as servers:
        for workload in catalogue(QUICK_SHARE if chosen.quick else 1, chosen.batch_bytes or BATCH_BYTES):
            turns = Turns(workload, servers, failures)
            cases.append(turns.case)
            turns.measure(chosen.rounds)
    verdicts = [Verdict(gate, case, gate.value(case, cases)) for gate in GATES for case in cases]
    return Outcome(cases, verdicts if not chosen.only else [], failures)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description="Flowstone and Kafka over TLS.")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="smaller rounds, for a quick estimate")
    parser.add_argument("--batch-bytes", type=int, nargs="+", choices=BATCH_BYTES, help="batch sizes (default: all)")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.rounds is None:
        chosen.rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    if chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    return carry_out(partial(measure_all, chosen), TITLE, chosen.name, {"Apache Kafka": KAFKA_VERSION})


if __name__ == "__main__":
    sys.exit(main())
