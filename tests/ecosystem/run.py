"""`make ecosystem`: products that people run on Kafka, installed as they are, against Flowstone.

    python -m tests.ecosystem.run [--kafka | --kafka-only] [--record] [NAME...]

Every product gets a new broker. With `--kafka` each case also runs against Apache Kafka, for comparison. The exit
status is 0 only if every product passed on Flowstone, or on Kafka if that is the only broker; one that could not be
installed counts as failed. `--record` keeps the results, of which `results.py` makes the table of docs/clients.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from confluent_kafka import KafkaException
from scripts.client_suites.suite import CheckFailed, Unavailable

from bench.servers import Flowstone, Kafka, Server

from . import results
from .cases import PRODUCTS
from .digests import digest
from .product import Case, Product

REASON_CHARACTERS_MAX = 600
# A single broker of Kafka has no transactions without these; Flowstone needs no setting.
KAFKA_SETTINGS = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}


class Result(NamedTuple):
    product: Product
    broker: str
    checks: list[str]
    failure: str | None
    seconds: float

    @property
    def text(self) -> str:
        return f"{len(self.checks)} checks" if self.failure is None else "FAILED"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    brokers = parser.add_mutually_exclusive_group()
    brokers.add_argument("--kafka", action="store_true", help="run each case against Apache Kafka as well")
    brokers.add_argument("--kafka-only", action="store_true", help="run each case against Apache Kafka alone")
    parser.add_argument("--directory", type=Path, help="where to leave the products' output (default: nowhere)")
    parser.add_argument("--record", action="store_true", help="keep the results in results.json")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PRODUCTS)}; default: all")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(PRODUCTS)
    if unknown:
        parser.error(f"no such product: {', '.join(sorted(unknown))}; there are {', '.join(PRODUCTS)}")
    kinds: list[type[Server]] = [] if options.kafka_only else [Flowstone]
    if options.kafka or options.kafka_only:
        kinds.append(Kafka)
    found = []
    for name in options.names or PRODUCTS:
        for kind in kinds:
            case = digest(PRODUCTS[name])  # as it is now: it may be edited while it runs
            result = run(PRODUCTS[name], kind, options.directory)
            found.append(result)
            if options.record:
                kept = results.Result(case, result.product.version, len(result.checks), result.checks, result.failure)
                results.record(name, result.broker, kept)
    print_table(found, [kind.name for kind in kinds])
    return 1 if any(each.failure is not None and each.broker == kinds[0].name for each in found) else 0


def run(product: Product, kind: type[Server], directory: Path | None) -> Result:
    started, failure = time.monotonic(), None
    with (
        tempfile.TemporaryDirectory(prefix=f"ecosystem-{product.name}-") as work,
        kind(KAFKA_SETTINGS if kind is Kafka else {}) as server,
    ):
        folder = Path(work) if directory is None else directory / f"{product.name}-{kind.name}"
        if directory is not None:  # the state of an earlier run is no state of this one
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        case = Case(server, folder)
        try:
            product.run(case)
        except (CheckFailed, Unavailable, KafkaException, TimeoutExpired, OSError) as error:
            failure = str(error)[-REASON_CHARACTERS_MAX:]
        finally:
            case.stop_all()
    result = Result(product, server.name, case.checks, failure, time.monotonic() - started)
    print(f"{product.name:16} {server.name:10} {result.text:10} {result.seconds:5.0f} s", flush=True)
    for sentence in case.checks:
        print(f"    {sentence}")
    if failure is not None:
        print(f"    failed: {failure}", flush=True)
    return result


def print_table(found: Sequence[Result], brokers: Sequence[str]) -> None:
    print(f"\n| product | version | exercised | {' | '.join(brokers)} |\n|---|---|---|{'---|' * len(brokers)}")
    for product in dict.fromkeys(each.product for each in found):
        texts = [each.text for each in found if each.product == product]
        print(f"| {product.name} | {product.version} | {product.exercised} | {' | '.join(texts)} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
