"""kcat, with the old librdkafka of Debian."""

from __future__ import annotations

from scripts.client_suites.suite import CheckFailed, Server, Suite, expect, run, tool

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONSUMED_FORMAT = "%p:%o:%k:%s:%h\n"
RECORDS = 100


def run_suite(suite: Suite, server: Server) -> None:
    kcat = tool("kcat", package="kcat")
    client = [kcat, "-b", server.address, "-q"]

    def produce(codec: str) -> None:
        lines = "k1:v1\nk2:v2\n" * (RECORDS // 2)
        run([*client, "-P", "-t", f"codec-{codec}", "-z", codec, "-K", ":", "-H", "h=1"], input=lines)

    def consume(codec: str) -> None:
        told = run([*client, "-C", "-t", f"codec-{codec}", "-o", "beginning", "-e", "-f", CONSUMED_FORMAT])
        expect(told, "0:0:k1:v1:h=1\n", "0:99:k2:v2:h=1\n")

    def expect_told(arguments: list[str], *parts: str) -> None:
        expect(run([*client, *arguments]), *parts)

    leader = "partition 0, leader 1" if server.brokers == 1 else "partition 0, leader "
    for codec in CODECS:
        suite.check(f"produce with {codec}", lambda codec=codec: produce(codec))  # type: ignore[misc]
        suite.check(f"consume {codec}", lambda codec=codec: consume(codec))  # type: ignore[misc]
    suite.check(
        "metadata", lambda: expect_told(["-L"], f"{server.brokers} brokers", 'topic "codec-zstd" with 1 partitions')
    )
    suite.check("metadata of one topic", lambda: expect_told(["-L", "-t", "codec-gzip"], leader))
    suite.check("offset of a time", lambda: expect_told(["-Q", "-t", "codec-none:0:0"], "codec-none [0] offset 0"))
    suite.check("offset of the end", lambda: expect_told(["-Q", "-t", "codec-none:0:-1"], "codec-none [0] offset 100"))
    suite.check(
        "the last record",
        lambda: expect_told(["-C", "-t", "codec-lz4", "-o", "-1", "-e", "-f", "%o"], "99"),
    )
    suite.check("an idempotent producer", lambda: _produce_idempotently(client))
    suite.check("a consumer group (-G) reads every partition", lambda: _consume_in_group(client, RECORDS))
    suite.check("the group goes on where it was", lambda: _consume_in_group(client, 0))


def _consume_in_group(client: list[str], count: int) -> None:
    told = run([*client, "-G", "readers", "-X", "auto.offset.reset=earliest", "-e", "-f", "%o\n", "codec-none"])
    if len(told.split()) != count:
        raise CheckFailed(f"read {len(told.split())} records, not {count}")


def _produce_idempotently(client: list[str]) -> None:
    run([*client, "-P", "-t", "idempotent", "-X", "enable.idempotence=true"], input="1\n2\n3\n")
    told = run([*client, "-C", "-t", "idempotent", "-o", "beginning", "-e"])
    if told.split() != ["1", "2", "3"]:
        raise CheckFailed(f"read {told!r}")
