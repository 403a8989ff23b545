from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.cli.log_files.survey import open_for_reading, walk
from flowstone.log.lifecycle.directory_identity import CLEAN_SHUTDOWN_MARKER, LOCK_FILE
from flowstone.log.segments.batch_scan import VERIFY_CHUNK_BYTES, ScannedBatch
from flowstone.log.segments.checkpoints import RECOVERY_POINT_CHECKPOINT, encode_offsets
from flowstone.log.segments.preallocation import ZEROS_BYTES_MAX
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, encode_header, parse_header
from tests.support.wire_client import Client, batch_of

Run = Callable[..., subprocess.CompletedProcess[str]]

RECORDS_PER_BATCH = 10
SEGMENT_BATCHES = 4


def batch(base_offset: int) -> bytes:
    offsets = range(base_offset, base_offset + RECORDS_PER_BATCH)
    records = [Record(offset, 1_700_000_000_000 + offset, b"key", b"value %04d" % offset) for offset in offsets]
    return build_batch(records, base_offset=base_offset, partition_leader_epoch=3)


BATCH_BYTES = len(batch(0))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with one partition of two segments, as a clean stop leaves it."""
    data = tmp_path / "data"
    partition = data / "orders-0"
    partition.mkdir(parents=True)
    for segment in (0, 1):
        base = segment * SEGMENT_BATCHES * RECORDS_PER_BATCH
        batches = [batch(base + number * RECORDS_PER_BATCH) for number in range(SEGMENT_BATCHES)]
        (partition / f"{base:020d}.log").write_bytes(b"".join(batches))
    (partition / f"{0:020d}.index").write_bytes(b"")
    (partition / f"{0:020d}.timeindex").write_bytes(b"")
    (data / RECOVERY_POINT_CHECKPOINT).write_bytes(encode_offsets({TopicPartition("orders", 0): 80}))
    (data / CLEAN_SHUTDOWN_MARKER).write_bytes(b"{}")
    return data


def first_segment(data: Path) -> Path:
    return data / "orders-0" / f"{0:020d}.log"


def last_segment(data: Path) -> Path:
    return data / "orders-0" / f"{40:020d}.log"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def snapshot(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_a_good_directory_is_verified_without_changing_a_byte(run: Run, data: Path) -> None:
    before = snapshot(data)
    result = run("log", "verify", data)
    assert result.stdout == "orders-0: 80 records, offsets 0 to 79, 2 segments: good\n1 partition, nothing damaged\n"
    assert result.returncode == 0
    assert snapshot(data) == before


@pytest.mark.parametrize(
    "position",
    [
        pytest.param(BATCH_BYTES + HEADER_BYTES + 5, id="payload"),
        pytest.param(BATCH_BYTES + 7, id="base offset"),
        pytest.param(BATCH_BYTES + 8, id="length"),
        pytest.param(BATCH_BYTES + 16, id="magic"),
        pytest.param(BATCH_BYTES + 25, id="last offset delta"),
    ],
)
def test_a_flipped_byte_is_found_with_its_file_and_offsets(run: Run, data: Path, position: int) -> None:
    flip(first_segment(data), position)
    before = snapshot(data)
    result = run("log", "verify", data)
    assert result.returncode == 1
    where = f"{first_segment(data)}: offsets 10 to 19 (position {BATCH_BYTES} to {2 * BATCH_BYTES})"
    assert where in result.stdout
    assert "1 of 1 partition damaged" in result.stdout
    assert snapshot(data) == before


def test_damage_in_several_places_is_found_in_one_go(run: Run, data: Path) -> None:
    flip(first_segment(data), HEADER_BYTES)
    flip(first_segment(data), 2 * BATCH_BYTES + 8)
    flip(last_segment(data), 3 * BATCH_BYTES + HEADER_BYTES)
    result = run("log", "verify", data)
    for offsets in ("offsets 0 to 9", "offsets 20 to 29", "offsets 70 to 79"):
        assert offsets in result.stdout


def test_a_missing_segment_is_damage(run: Run, data: Path) -> None:
    last_segment(data).rename(data / "orders-0" / f"{60:020d}.log")
    result = run("log", "verify", data)
    assert "the segment ends at offset 40, not at 60" in result.stdout
    assert result.returncode == 1


def test_an_end_below_the_recovery_point_is_damage(run: Run, data: Path) -> None:
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    last_segment(data).write_bytes(last_segment(data).read_bytes()[:-BATCH_BYTES])
    result = run("log", "verify", data)
    assert "the segment ends at offset 70, not at 80" in result.stdout
    assert result.returncode == 1


def test_an_unfinished_write_is_no_damage(run: Run, data: Path) -> None:
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    with last_segment(data).open("ab") as file:
        file.write(batch(80)[:-1])
    result = run("log", "verify", data)
    assert ": an unfinished write" in result.stdout
    assert result.returncode == 0


SPACE = bytes(1000)


def test_space_for_more_at_the_end_is_no_damage(run: Run, data: Path) -> None:
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    with last_segment(data).open("ab") as file:
        file.write(SPACE)
    result = run("log", "verify", data)
    assert result.stdout == "orders-0: 80 records, offsets 0 to 79, 2 segments: good\n1 partition, nothing damaged\n"
    dumped = run("log", "dump", data / "orders-0")
    assert dumped.returncode == 0
    assert "DAMAGED" not in dumped.stdout
    assert f"  preallocated space of {len(SPACE)} bytes from position {4 * BATCH_BYTES} on\n" in dumped.stdout


def test_space_in_a_segment_sealed_after_the_recovery_point_is_no_damage(run: Run, data: Path) -> None:
    """The next start cuts it off, if nothing is missing between this segment and the next."""
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    (data / RECOVERY_POINT_CHECKPOINT).write_bytes(encode_offsets({TopicPartition("orders", 0): 20}))
    with first_segment(data).open("ab") as file:
        file.write(SPACE)
    assert run("log", "verify", data).stdout.endswith("1 partition, nothing damaged\n")


def test_zeros_in_the_place_of_records_are_damage_for_a_dump_too(run: Run, data: Path) -> None:
    content = first_segment(data).read_bytes()
    first_segment(data).write_bytes(content[: 2 * BATCH_BYTES] + bytes(2 * BATCH_BYTES))
    dumped = run("log", "dump", data / "orders-0")
    assert dumped.returncode == 1
    assert "  DAMAGED from offset 20 on" in dumped.stdout


def test_more_zeros_than_space_ever_has_are_told_of(run: Run, data: Path) -> None:
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    with last_segment(data).open("ab") as file:
        file.write(bytes(ZEROS_BYTES_MAX + 1))
    assert ": an unfinished write" in run("log", "verify", data).stdout


def test_a_file_whose_space_goes_while_it_is_looked_over_is_not_damaged(tmp_path: Path) -> None:
    """As a broker cuts it off that goes on with another file."""
    path = tmp_path / f"{0:020d}.log"
    count = 2 * VERIFY_CHUNK_BYTES // BATCH_BYTES
    batches = b"".join(batch(number * RECORDS_PER_BATCH) for number in range(count))
    path.write_bytes(batches + SPACE)
    found = walk(open_for_reading(str(path)), 0)
    looked_over = [next(found)]
    os.truncate(path, len(batches))
    looked_over += found
    assert all(isinstance(each, ScannedBatch) for each in looked_over)
    assert len(looked_over) == count


def test_zeros_in_the_place_of_durable_records_are_damage_and_are_repaired(run: Run, data: Path) -> None:
    (data / CLEAN_SHUTDOWN_MARKER).unlink()
    last_segment(data).write_bytes(last_segment(data).read_bytes()[:-BATCH_BYTES] + SPACE)
    assert "the segment ends at offset 70, not at 80" in run("log", "verify", data).stdout
    run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    repaired = last_segment(data).read_bytes()
    assert len(repaired) == 3 * BATCH_BYTES + HEADER_BYTES
    assert parse_header(repaired, 3 * BATCH_BYTES).last_offset == 79


@pytest.mark.parametrize("segment", [first_segment, last_segment])
def test_zeros_that_no_start_would_cut_off_are_damage_and_are_repaired(
    run: Run, data: Path, segment: Callable[[Path], Path]
) -> None:
    content = segment(data).read_bytes()
    segment(data).write_bytes(content + SPACE)
    assert "zeros follow the last batch" in run("log", "verify", data).stdout
    run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert segment(data).read_bytes() == content


def test_an_index_that_leads_astray_is_named(run: Run, data: Path) -> None:
    (data / "orders-0" / f"{0:020d}.index").write_bytes((19).to_bytes(4) + (7).to_bytes(4))
    result = run("log", "verify", data)
    assert f"{0:020d}.index: it does not match the log" in result.stdout
    assert result.returncode == 1


def test_a_directory_that_is_none_is_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    result = run("log", "verify", tmp_path / "nowhere")
    assert result.returncode == 1
    assert "is not a directory" in result.stderr
    assert "Traceback" not in result.stderr


def test_dump_prints_batches_and_their_records(run: Run, data: Path) -> None:
    result = run("log", "dump", "--records", data / "orders-0")
    assert "offsets 10 to 19, position" in result.stdout
    assert "10 records, codec none, newest 2023-11-14T22:13:20.019Z, epoch 3" in result.stdout
    assert "19 2023-11-14T22:13:20.019Z 'key' 'value 0019'" in result.stdout
    assert result.returncode == 0


def test_repair_only_shows_what_would_be_lost_unless_told_yes(run: Run, data: Path) -> None:
    flip(first_segment(data), BATCH_BYTES + HEADER_BYTES)
    before = snapshot(data)
    result = run("log", "repair", data, "--topic", "orders", "--partition", 0)
    assert result.returncode == 1
    assert "offsets 10 to 19" in result.stdout
    assert "--yes" in result.stderr
    assert {path: content for path, content in snapshot(data).items() if path.name != LOCK_FILE} == before


def test_repair_loses_only_the_damaged_batch_and_keeps_the_damaged_file(run: Run, data: Path) -> None:
    flip(first_segment(data), BATCH_BYTES + HEADER_BYTES)
    damaged = first_segment(data).read_bytes()
    result = run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert result.returncode == 0, result.stderr
    repaired = first_segment(data).read_bytes()
    filler = parse_header(repaired, BATCH_BYTES)
    assert (filler.base_offset, filler.last_offset, filler.record_count) == (10, 19, 0)
    assert repaired[:BATCH_BYTES] == batch(0)
    assert repaired[BATCH_BYTES + HEADER_BYTES :] == batch(20) + batch(30)
    assert first_segment(data).with_suffix(".log.damaged").read_bytes() == damaged
    assert run("log", "verify", data).stdout.startswith("orders-0: 70 records, offsets 0 to 79, 2 segments: good\n")


def test_repair_of_a_lost_tail_never_gives_its_offsets_again(run: Run, data: Path) -> None:
    last_segment(data).write_bytes(last_segment(data).read_bytes()[:-BATCH_BYTES])
    run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert run("log", "verify", data).stdout.startswith("orders-0: 70 records, offsets 0 to 79, 2 segments: good\n")


def test_repair_refuses_while_the_directory_is_in_use(run: Run, data: Path) -> None:
    lock = SystemFiles().lock(str(data / LOCK_FILE))
    result = run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    lock.release()
    assert result.returncode == 1
    assert "a broker is running" in result.stderr


def test_repair_of_a_good_partition_does_nothing(run: Run, data: Path) -> None:
    result = run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert result.stdout.endswith("nothing to repair\n")
    assert result.returncode == 0


def test_a_repaired_partition_is_served_without_the_lost_records(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with flowstone.Broker(data=str(data)) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0})
        for number in range(3):
            producer.produce("orders", f"value {number}")
            assert producer.flush(10) == 0
    log = first_segment(data)
    flip(log, log.read_bytes().index(b"value 1"))
    assert run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes").returncode == 0
    with flowstone.Broker(data=str(data)) as broker:
        printed = run("consume", "orders", "--with", "offset", "--bootstrap", broker.bootstrap).stdout
    assert printed == "0\tvalue 0\n2\tvalue 2\n"


# Batches whose checksum is right and which no consumer can read


def poison(base_offset: int, payload: bytes = b"notgzip", **fields: int) -> bytes:
    header = parse_header(batch(base_offset))._replace(attributes=Codec.GZIP, **fields)
    return encode_header(header, payload) + payload


def replace_batch(path: Path, number: int, other: bytes) -> None:
    content = path.read_bytes()
    begin = number * BATCH_BYTES
    path.write_bytes(content[:begin] + other + content[begin + BATCH_BYTES :])


UNREADABLE = [
    pytest.param(b"notgzip", {}, id="not of its codec"),
    pytest.param(compress(Codec.GZIP, batch(0)[HEADER_BYTES:]), {"record_count": 9}, id="fewer claimed than there are"),
    pytest.param(compress(Codec.GZIP, batch(0)[HEADER_BYTES:]), {"record_count": 2**31 - 1}, id="more claimed"),
    pytest.param(compress(Codec.GZIP, batch(0)[HEADER_BYTES:-1]), {}, id="cut records"),
]


@pytest.mark.parametrize(("payload", "fields"), UNREADABLE)
@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_batch_that_no_consumer_can_read_is_found_and_repaired(
    run: Run, data: Path, number: int, payload: bytes, fields: dict[str, int]
) -> None:
    first = number * RECORDS_PER_BATCH
    replace_batch(first_segment(data), number, poison(first, payload, **fields))
    result = run("log", "verify", data)
    assert result.returncode == 1
    assert f"offsets {first} to {first + 9}" in result.stdout
    assert "no consumer can read the batch" in result.stdout
    before = first_segment(data).read_bytes()
    assert run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes").returncode == 0
    assert first_segment(data).with_name(first_segment(data).name + ".damaged").read_bytes() == before
    assert run("log", "verify", data).stdout.startswith("orders-0: 70 records, offsets 0 to 79, 2 segments: good\n")


@pytest.mark.parametrize("clean", [True, False])
def test_an_unreadable_last_batch_is_found_whatever_was_durable(run: Run, data: Path, clean: bool) -> None:
    replace_batch(last_segment(data), 3, poison(70))
    (data / RECOVERY_POINT_CHECKPOINT).write_bytes(encode_offsets({TopicPartition("orders", 0): 60}))
    if not clean:
        (data / CLEAN_SHUTDOWN_MARKER).unlink()
    assert "no consumer can read the batch" in run("log", "verify", data).stdout
    run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert run("log", "verify", data).stdout.startswith("orders-0: 70 records, offsets 0 to 79, 2 segments: good\n")


def test_a_batch_that_claims_all_offsets_there_can_be_is_repaired_at_its_offsets(run: Run, data: Path) -> None:
    claims = {"record_count": 2**31 - 1 - 70, "last_offset_delta": 2**31 - 2 - 70}
    replace_batch(last_segment(data), 3, poison(70, compress(Codec.GZIP, batch(0)[HEADER_BYTES:]), **claims))
    assert "no consumer can read the batch" in run("log", "verify", data).stdout
    run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes")
    assert run("log", "verify", data).stdout.startswith(f"orders-0: 70 records, offsets 0 to {2**31 - 2}, ")


def test_dump_goes_on_behind_a_batch_that_it_cannot_read(run: Run, data: Path) -> None:
    replace_batch(first_segment(data), 1, poison(10))
    result = run("log", "dump", first_segment(data), "--records")
    assert "its records cannot be read" in result.stdout
    assert "value 0039" in result.stdout


def test_consumers_get_past_a_stored_batch_that_they_cannot_read_once_it_is_repaired(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with flowstone.Broker(data=str(data)) as broker:
        broker.create_topic("orders", configs={"flowstone.validation": "header"})
        host, _, port = broker.bootstrap.partition(":")
        with Client((host, int(port))) as client:
            for records in (batch_of(b"value 0"), poison_for(batch_of(b"value 1")), batch_of(b"value 2")):
                assert client.produce("orders", records).error_code == 0
    assert run("log", "repair", data, "--topic", "orders", "--partition", 0).returncode == 1
    assert run("log", "repair", data, "--topic", "orders", "--partition", 0, "--yes").returncode == 0
    with flowstone.Broker(data=str(data)) as broker:
        printed = run("consume", "orders", "--with", "offset", "--bootstrap", broker.bootstrap).stdout
    assert printed == "0\tvalue 0\n2\tvalue 2\n"


def poison_for(good: bytes) -> bytes:
    payload = b"notgzip"
    return encode_header(parse_header(good)._replace(attributes=Codec.GZIP), payload) + payload
