"""Files damaged behind the broker's back: a torn tail is cut, older damage is named and never cut, the rest goes on.

S2, S4, S5: what follows from the log is made again; what does not is not touched.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from flowstone.errors import ErrorCode
from flowstone.log.lifecycle.durable_extents import LOG_EXTENTS
from flowstone.log.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import HEADER_BYTES, MAGIC_POSITION

from .checker import ACKS_ALL, Fault
from .damage import (
    batches,
    flip_bit,
    flip_bit_above_recovery_point,
    flip_bit_below_recovery_point,
    flip_payload_bit,
    log_files,
    set_recovery_point,
    write_at,
)
from .filled_broker import FilledBroker
from .raw_client import LATEST, RawClient, Refused
from .traffic import batch_of

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_torn_tail_is_cut_at_the_last_whole_batch(filled: FilledBroker) -> None:
    torn = filled.partitions[0]
    log_file = log_files(filled.data, torn)[-1]
    last = batches(log_file)[-1]
    end = last.position + last.header.size_bytes
    batch = log_file.read_bytes()[last.position : end]
    for left_over in (8, 61, len(batch) - 1):
        write_at(log_file, end, batch[:left_over])
        cut_bytes = log_file.stat().st_size - end  # with the space that a killed broker leaves
        with filled.start() as broker, RawClient(broker.bootstrap) as client:
            assert not filled.check(client), broker.output
            assert f"truncated {cut_bytes} bytes from offset {last.header.next_offset} on" in broker.output
        assert log_file.stat().st_size == end


@pytest.mark.parametrize(
    ("tail", "is_damage"),
    [(bytes(4096), False), (random.Random(1).randbytes(5000), True)],
    ids=["zeros", "other bytes"],
)
def test_a_tail_of_zeros_or_of_other_bytes_is_cut(filled: FilledBroker, tail: bytes, is_damage: bool) -> None:
    log_file = log_files(filled.data, filled.partitions[0])[-1]
    last = batches(log_file)[-1]
    end = last.position + last.header.size_bytes
    write_at(log_file, end, tail)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output
        assert ("truncated" in broker.output) == is_damage
    assert log_file.stat().st_size == end


def _repair(run: Run, filled: FilledBroker, hit: TopicPartition) -> subprocess.CompletedProcess[str]:
    """What `log repair` says; without --yes it must refuse."""
    arguments = ("log", "repair", filled.data, "--topic", hit.topic, "--partition", hit.partition)
    assert "--yes" in run(*arguments).stderr
    return run(*arguments, "--yes")


def _check_offline(filled: FilledBroker, hit: TopicPartition, *told: str) -> None:
    """A start leaves the partition offline, says so, and changes no log file."""
    before = {path.name: path.read_bytes() for path in log_files(filled.data, hit)}
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert f"partition {hit} stays offline" in broker.output
        for each in (*told, f"flowstone log repair {filled.data} --topic {hit.topic} --partition {hit.partition}"):
            assert each in broker.output
        with pytest.raises(Refused) as refused:
            client.fetch(hit, 0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        client.produce(filled.partitions[1], batch_of([filled.history.next_origin(filled.partitions[1], "more")]), 1)
    assert {path.name: path.read_bytes() for path in log_files(filled.data, hit)} == before


def _check_lost(filled: FilledBroker, hit: TopicPartition, first: int, following: int, end: int) -> None:
    """After a repair all is served but these offsets, and the log goes on at its end."""
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert "stays offline" not in broker.output
        offsets = [offset for offset, _value in client.read_log(hit).records]
        assert offsets == [offset for offset in range(end) if not first <= offset < following]
        assert client.produce(hit, batch_of([filled.history.next_origin(hit, "after")]), ACKS_ALL) == end


@pytest.mark.parametrize("which", ["sealed", "active"])
def test_damage_above_the_recovery_point_cuts_nothing_and_is_repaired(
    filled: FilledBroker, run: Run, which: str
) -> None:
    hit = filled.partitions[0]
    set_recovery_point(filled.data, hit, 0)
    end = batches(log_files(filled.data, hit)[-1])[-1].header.next_offset
    log_file = log_files(filled.data, hit)[0 if which == "sealed" else -1]
    found = batches(log_file)
    victim, after = found[len(found) // 2], found[len(found) // 2 + 1 :]
    flip_bit(log_file, victim.position + (HEADER_BYTES + victim.header.size_bytes) // 2)
    offset = victim.header.base_offset
    following = after[0].header.base_offset if after else victim.header.next_offset
    _check_offline(filled, hit, f"damaged at offset {offset}")
    assert f"{log_file}: offsets {offset} to" in run("log", "verify", filled.data).stdout
    assert _repair(run, filled, hit).returncode == 0
    _check_lost(filled, hit, offset, following, end)


def test_damage_to_a_segment_sealed_before_the_kill_cuts_nothing_behind_it(filled: FilledBroker) -> None:
    hit = filled.partitions[0]
    sealed = log_files(filled.data, hit)[0]
    ends = {each: batches(each)[-1].header.next_offset for each in log_files(filled.data, hit)}
    first = batches(sealed)[0]
    flip_bit(sealed, first.position + (HEADER_BYTES + first.header.size_bytes) // 2)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        if "stays offline" not in broker.output:  # the recovery point was past it already
            assert client.offset_of(hit, LATEST) == max(ends.values())
            assert "bad checksum" in {anomaly.kind for anomaly in filled.check(client)}
    for each, end in ends.items():
        assert batches(each)[-1].header.next_offset == end


def test_without_any_witness_of_a_flush_damage_before_good_batches_still_cuts_nothing(filled: FilledBroker) -> None:
    hit = filled.partitions[0]
    (filled.data / LOG_EXTENTS).unlink()
    offset = flip_bit_above_recovery_point(filled.data, hit)
    _check_offline(filled, hit, f"damaged at offset {offset}", "good batches follow")


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
@pytest.mark.parametrize("which", ["first", "middle", "last", "all", "directory"])
def test_missing_files_take_the_partition_offline_until_it_is_repaired(
    filled: FilledBroker, run: Run, which: str, clean: bool
) -> None:
    hit = filled.partitions[0]
    if clean:
        _stop_cleanly(filled)
    files = log_files(filled.data, hit)
    bases = [int(path.stem) for path in files]
    end = batches(files[-1])[-1].header.next_offset
    chosen = {"first": files[:1], "middle": files[1:2], "last": files[-1:]}.get(which, files)
    first = int(chosen[0].stem)
    following = next((base for base in bases if base > int(chosen[-1].stem)), end)
    for path in chosen:
        path.unlink()
    if which == "directory":
        shutil.rmtree(filled.data / str(hit))
    verified = run("log", "verify", filled.data)
    assert verified.returncode == 1
    assert f"offsets {first} to {following - 1}" in verified.stdout
    if which == "directory":
        with filled.start() as broker:
            assert f"partition {hit} stays offline" in broker.output
            assert "is not there" in broker.output
    else:
        _check_offline(filled, hit)
    assert _repair(run, filled, hit).returncode == 0
    _check_lost(filled, hit, first, following, end)


@pytest.mark.parametrize("boundary", [True, False], ids=["between batches", "inside one"])
def test_a_log_file_cut_short_after_a_kill_takes_the_partition_offline(filled: FilledBroker, boundary: bool) -> None:
    hit = filled.partitions[0]
    log_file = log_files(filled.data, hit)[-1]
    last = batches(log_file)[-1]
    with open(log_file, "r+b") as file:
        file.truncate(last.position + (0 if boundary else 30))
    _check_offline(filled, hit, str(last.header.base_offset))


def test_damage_below_the_recovery_point_is_never_cut_and_the_others_go_on(filled: FilledBroker, run: Run) -> None:
    hit, other = filled.partitions
    log_file = log_files(filled.data, hit)[-1]
    offset = flip_bit_below_recovery_point(filled.data, hit)
    before = log_file.read_bytes()
    verified = run("log", "verify", filled.data)
    assert verified.returncode == 1
    assert f"{log_file}: offsets {offset} to" in verified.stdout
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert f"partition {hit} stays offline" in broker.output
        assert f"damaged at offset {offset}" in broker.output
        with pytest.raises(Refused) as refused:
            client.fetch(hit, 0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(Refused):
            client.produce(hit, batch_of([filled.history.next_origin(hit, "after")]), ACKS_ALL)
        assert client.read_log(other).end_offset > 0
        client.produce(other, batch_of([filled.history.next_origin(other, "after")]), ACKS_ALL)
    assert log_file.read_bytes() == before


def test_an_offline_partition_stays_so_through_a_clean_stop_and_is_served_once_mended(filled: FilledBroker) -> None:
    hit = filled.partitions[0]
    log_file = log_files(filled.data, hit)[-1]
    good = log_file.read_bytes()
    flip_bit_below_recovery_point(filled.data, hit)
    for _ in range(2):
        broker = filled.start().wait_ready()
        assert f"partition {hit} stays offline" in broker.output
        assert broker.terminate() == 0
    log_file.write_bytes(good)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output


def test_a_damaged_header_met_by_a_read_takes_the_partition_offline_and_no_other(filled: FilledBroker) -> None:
    hit, other = filled.partitions
    sealed = log_files(filled.data, hit)[0]
    second = batches(sealed)[1]
    _stop_cleanly(filled)
    flip_bit(sealed, second.position + MAGIC_POSITION)
    before = sealed.read_bytes()
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        with pytest.raises(Refused) as refused:
            client.fetch(hit, second.header.base_offset)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(Refused):
            client.fetch(hit, 0)
        assert client.read_log(other).end_offset > 0
        assert f"partition {hit} is offline" in broker.output
    assert sealed.read_bytes() == before


def test_a_flipped_bit_in_a_sealed_segment_is_named_by_verify_and_met_by_the_client(
    filled: FilledBroker, run: Run
) -> None:
    hit = filled.partitions[0]
    _stop_cleanly(filled)
    offset = flip_payload_bit(filled.data, hit)
    log_file = next(path for path in reversed(log_files(filled.data, hit)) if int(path.stem) <= offset)
    verified = run("log", "verify", filled.data)
    assert verified.returncode == 1
    assert f"{log_file}: offsets {offset} to" in verified.stdout
    assert "the checksum does not match" in verified.stdout
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert "bad checksum" in {anomaly.kind for anomaly in filled.check(client)}


def test_a_missing_sealed_segment_takes_the_partition_offline(filled: FilledBroker) -> None:
    hit = filled.partitions[0]
    files = log_files(filled.data, hit)
    set_recovery_point(filled.data, hit, batches(files[-1])[-1].header.next_offset)
    files[1].rename(filled.data / "elsewhere")
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        with pytest.raises(Refused) as refused:
            client.fetch(hit, int(files[1].stem))
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def _stop_cleanly(filled: FilledBroker) -> None:
    assert filled.start().wait_ready().terminate() == 0


def _derived_files(data: Path, partition: TopicPartition) -> list[Path]:
    directory = data / str(partition)
    return sorted(
        path
        for suffix in ("*.index", "*.timeindex", "*.snapshot", LEADER_EPOCH_CHECKPOINT)
        for path in directory.glob(suffix)
    )


def _rot(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    way = chance.randrange(4)
    if way == 0:
        path.unlink()
        return
    if way == 1 and data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif way == 2:
        del data[chance.randrange(len(data) + 1) :]
    else:
        data[:] = chance.randbytes(len(data) + chance.randrange(64))
    path.write_bytes(data)


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
def test_whatever_follows_from_the_log_may_vanish_or_rot(filled: FilledBroker, clean: bool) -> None:
    chance = random.Random(clean)
    for _ in range(2):
        with filled.start() as broker, RawClient(broker.bootstrap) as client:
            assert not filled.check(client), broker.output
            filled.fill(client, 20)
            if clean:
                broker.terminate()
        derived = [path for partition in filled.partitions for path in _derived_files(filled.data, partition)]
        assert derived
        for path in derived:
            _rot(path, chance)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client, Fault.KILL), broker.output


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a kill"])
@pytest.mark.parametrize(
    "content", [None, b"0\n1\norders 0 9", random.Random(2).randbytes(40)], ids=["gone", "cut", "noise"]
)
def test_without_a_recovery_point_checkpoint_everything_is_checked_and_kept(
    filled: FilledBroker, clean: bool, content: bytes | None
) -> None:
    if clean:
        _stop_cleanly(filled)
    checkpoint = filled.data / RECOVERY_POINT_CHECKPOINT
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_bytes(content)
    with filled.start() as broker, RawClient(broker.bootstrap) as client:
        assert not filled.check(client), broker.output
