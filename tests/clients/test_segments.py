"""Kafka's own DumpLogSegments opens our files: segments, both indexes, producer snapshots.

Written by a real producer with every codec, over several segments, and left behind by a clean stop.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from flowstone.embedded import Broker
from tests.clients.confluent_driver import ConfluentDriver
from tests.clients.conftest import Java
from tests.clients.driver import Sent

SEGMENT_BYTES = 1 << 20
# Noise in hexadecimal shrinks to half at best (where it does not shrink, librdkafka sends it as it is), so that two
# segments fill and a third begins with every codec.
RECORDS, NOISE_BYTES = 460, 5000
SEGMENTS_MIN = 3

COMPLAINTS = re.compile(r"mismatch|out of order|invalid bytes|isvalid: false|corrupt|exception", re.I)
# The tool takes every segment to follow offset -1; that complaint alone is its own.
GAPS = re.compile(r"^ +(?!-1 )\d+ is followed by", re.M)


def dump(java: Java, paths: list[Path], *flags: str) -> str:
    return java("org.apache.kafka.tools.DumpLogSegments", *flags, "--files", ",".join(map(str, paths)))


@pytest.fixture(scope="module")
def data_directory(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic per codec, of several segments; nobody has it open any more."""
    directory = tmp_path_factory.mktemp("segments")
    noise = random.Random(7)
    with Broker(data=str(directory), settings={"flush.messages": "1000000"}) as broker:
        client = ConfluentDriver(broker.bootstrap)
        for codec in client.codecs:
            client.create_topic(codec, 1, {"segment.bytes": str(SEGMENT_BYTES)})
            records = [Sent(noise.randbytes(NOISE_BYTES).hex().encode(), b"%d" % number) for number in range(RECORDS)]
            client.produce(codec, records, compression=codec, idempotent=True)
    return directory


def files(directory: Path, suffix: str) -> list[Path]:
    found = sorted(directory.glob(f"*-0/*{suffix}"))
    assert len(found) >= len(ConfluentDriver.codecs), f"too few files ending in {suffix}"
    return found


def test_every_batch_of_every_codec_is_valid_to_kafka(java: Java, data_directory: Path) -> None:
    segments = files(data_directory, ".log")

    told = dump(java, segments, "--deep-iteration")

    assert len(segments) >= SEGMENTS_MIN * len(ConfluentDriver.codecs)
    assert not COMPLAINTS.search(told)
    assert not GAPS.search(told)
    assert len(re.findall(r"^\| offset: ", told, re.M)) == RECORDS * len(ConfluentDriver.codecs)
    for codec in ConfluentDriver.codecs:
        assert f"compresscodec: {codec}" in told.lower()


def test_both_indexes_agree_with_the_log_to_kafka(java: Java, data_directory: Path) -> None:
    told = dump(java, files(data_directory, ".index") + files(data_directory, ".timeindex"), "--verify-index-only")

    assert not COMPLAINTS.search(told)


def test_both_indexes_pass_kafkas_check_at_start(java: Java, data_directory: Path) -> None:
    indexes = files(data_directory, ".index") + files(data_directory, ".timeindex")

    told = dump(java, indexes, "--index-sanity-check")

    assert told.count("passed sanity check") == len(indexes)


def test_kafka_reads_the_producers_in_a_snapshot(java: Java, data_directory: Path) -> None:
    told = dump(java, files(data_directory, ".snapshot"))

    assert not COMPLAINTS.search(told)
    assert "producerId: " in told
    assert "producerEpoch: 0" in told
