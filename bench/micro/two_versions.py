"""A broker's processor time per request in two versions of the source: `python -m bench.micro.two_versions OLD/src`.

The brokers of both versions, this tree's and the other's, are up at the same time, and one client sends short blocks of
requests to them in turn, one request at a time. So other work on the machine slows both alike. A round's figure is
the tenth percentile of its blocks, the result the median over rounds; each round starts new brokers. The other tree
needs a built kernel. Produces are of one batch with acks=all, without flushing; fetches read such a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from bench import wire
from bench.connection import Connection
from bench.servers import Flowstone

SETTINGS = {"log.flush.interval.messages": str(2**63 - 1), "idle.poll.us": "0"}
SOURCE = Path(__file__).parents[2] / "src"
TOPIC = "two-versions"
ACKS_ALL = -1
WARM_UP_REQUESTS = 1000
BLOCKS, BLOCK_REQUESTS = 80, 50

Requests = dict[str, tuple[bytes, ...]]


class Version(Flowstone):
    """A broker that runs from a tree's `src` folder."""

    def __init__(self, source: Path) -> None:
        super().__init__(SETTINGS)
        self._source = source.resolve(strict=True)

    def _prepare(self) -> list[str]:
        return ["env", f"PYTHONPATH={self._source}", *super()._prepare()]


def requests_of(batch_bytes: int) -> Requests:
    batch = wire.record_batch(batch_bytes, value_bytes=batch_bytes // 2, timestamp_ms=int(time.time() * 1000)).data
    fetch = wire.fetch_request(TOPIC, [(0, 0)], 0, partition_max_bytes=len(batch))
    return {"produce": (bytes(wire.produce_head(TOPIC, 0, ACKS_ALL, len(batch))), batch), "fetch": (fetch,)}


def send(connection: Connection, parts: tuple[bytes, ...], count: int) -> None:
    for _ in range(count):
        connection.send(*parts)
        connection.receive_response()


def round_of(sources: list[Path], requests: Requests) -> dict[str, list[float]]:
    """Return the microseconds per request by its kind, for each version."""
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        brokers = [stack.enter_context(Version(source)) for source in sources]
        connections = [stack.enter_context(Connection(broker.address)) for broker in brokers]
        for connection in connections:
            wire.topic_response("CreateTopics", connection.ask(wire.create_topic(TOPIC, 1)))
        for kind, parts in requests.items():
            blocks: list[list[float]] = [[] for _ in brokers]
            for connection in connections:
                send(connection, parts, WARM_UP_REQUESTS)
            for block in range(BLOCKS):
                for index in (0, 1) if block % 2 else (1, 0):
                    before = brokers[index].cpu_seconds()
                    send(connections[index], parts, BLOCK_REQUESTS)
                    blocks[index].append((brokers[index].cpu_seconds() - before) / BLOCK_REQUESTS * 1e6)
            found[kind] = [statistics.quantiles(each, n=10)[0] for each in blocks]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.micro.two_versions", description=__doc__)
    parser.add_argument("other", type=Path, help="the other version's src folder")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batch-bytes", type=int, default=16 << 10)
    chosen = parser.parse_args()
    requests = requests_of(chosen.batch_bytes)
    rounds = [round_of([chosen.other, SOURCE], requests) for _ in range(chosen.rounds)]
    print("request   other    this   ratio   (µs of processor time per request; the ratio's range over rounds)")
    for kind in requests:
        other, this = (statistics.median(each[kind][index] for each in rounds) for index in (0, 1))
        ratios = sorted(each[kind][1] / each[kind][0] for each in rounds)
        ratio = statistics.median(ratios)
        print(f"{kind:8} {other:6.1f}  {this:6.1f}   {ratio:5.3f}   {ratios[0]:.3f} to {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
