"""The client commands against a broker of this process, with one topic per test."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

import flowstone

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]
Prepare = Callable[..., None]


def test_a_topic_is_created_listed_described_and_deleted(call: Call) -> None:
    created = call("topic", "create", "life", "--partitions", 2, "--config", "retention.ms=3600000")
    assert created == "created life with 2 partitions\n"
    assert "life" in call("topic", "list").splitlines()
    lines = call("topic", "describe", "life").splitlines()
    assert lines[0] == "topic life: 2 partitions"
    assert [line.split() for line in lines[2:4]] == [["0", "0", "0", "1", "1", "1"], ["1", "0", "0", "1", "1", "1"]]
    assert lines[4].startswith("sizes, ages and free disk space are not known: the broker serves no HTTP pages")
    assert lines[5:] == ["retention.ms=3600000"]
    assert call("topic", "delete", "life", "--yes") == "deleted life\n"
    assert "life" not in call("topic", "list").splitlines()


def test_lines_become_records_and_records_lines(call: Call, prepare: Prepare) -> None:
    prepare("lines")
    assert call("produce", "lines", input="one\ntwo\n\nfour") == "stored 4 records\n"
    assert call("consume", "lines") == "one\ntwo\n\nfour\n"


def test_keys_and_headers_are_sent_and_shown(call: Call, prepare: Prepare) -> None:
    prepare("keyed")
    call("produce", "keyed", "--key-separator", ":", "--header", "a=1", "--header", "b=2", input="k:v:w\n")
    printed = call("consume", "keyed", "--with", "key,offset,partition,headers")
    assert printed == "k\t0\t0\ta=1,b=2\tv:w\n"


def test_keys_go_where_the_java_client_sends_them(call: Call, prepare: Prepare) -> None:
    # murmur2(key) & 0x7fffffff modulo 3, for keys whose hashes Kafka's own tests publish.
    prepare("partitioned", partitions=3)
    call("produce", "partitioned", "--key-separator", ":", input="21:x\nfoobar:x\nabc:x\n")
    printed = call("consume", "partitioned", "--with", "key,partition").splitlines()
    hashes = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
    expected = {f"{key}\t{(number & 0x7FFFFFFF) % 3}\tx" for key, number in hashes.items()}
    assert set(printed) == expected


def test_reading_begins_at_an_offset_and_ends_at_a_count(call: Call, prepare: Prepare) -> None:
    prepare("offsets", *((None, str(number), 1000) for number in range(10)))
    assert call("consume", "offsets", "--offset", 4, "--max", 3) == "4\n5\n6\n"


def test_reading_begins_at_a_time(call: Call, prepare: Prepare) -> None:
    prepare("times", (None, "early", 1000), (None, "late", 3000))
    assert call("consume", "times", "--timestamp", "1970-01-01T00:00:02+00:00") == "late\n"


def test_reading_from_after_the_newest_record_prints_nothing(call: Call, prepare: Prepare) -> None:
    prepare("past", (None, "early", 1000))
    assert call("consume", "past", "--timestamp", 1001) == ""


def test_only_one_partition_is_read_if_asked(call: Call, prepare: Prepare) -> None:
    prepare("two", *((str(number), str(number), 1000) for number in range(20)), partitions=2)
    parts = [set(call("consume", "two", "--partition", each).split()) for each in (0, 1)]
    assert parts[0] | parts[1] == {str(number) for number in range(20)}
    assert not parts[0] & parts[1]


def test_following_waits_for_new_records(
    call: Call, prepare: Prepare, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    prepare("followed", (None, "old", 1000))
    follower = spawn("consume", "followed", "--follow", "--from-beginning")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "old\n"
    call("produce", "followed", input="new\n")
    assert follower.stdout.readline() == "new\n"


def test_an_unknown_topic_is_named_with_the_nearest_one(refused: Call, prepare: Prepare) -> None:
    prepare("orders")
    for command in (("consume",), ("produce",), ("topic", "describe")):
        assert refused(*command, "ordres") == "flowstone: there is no topic ordres; did you mean orders?\n"


def test_whoever_wants_to_delete_is_not_told_to_create(refused: Call) -> None:
    assert refused("topic", "delete", "qqq") == "flowstone: there is no topic qqq; see `flowstone topic list`\n"


def test_asking_for_an_unknown_topic_does_not_make_it(call: Call, refused: Call) -> None:
    refused("produce", "never-made", input="x\n")
    assert "never-made" not in call("topic", "list").split()


def test_an_offset_that_is_not_there_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("short")
    assert "partition 0 of short has offsets 0 to 0, not 5" in refused("consume", "short", "--offset", 5)


def test_a_line_without_the_separator_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("separated")
    sentence = refused("produce", "separated", "--key-separator", ":", input="a:b\nc\n")
    assert "line 2 of the input has no key separator ':'; the records before it are stored (1 record)" in sentence


def test_a_topic_that_exists_is_refused(refused: Call, prepare: Prepare) -> None:
    prepare("twice")
    assert "already exists" in refused("topic", "create", "twice")


def test_a_broker_that_is_not_there_is_said_at_once(run_process: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    result = run_process("topic", "list", FLOWSTONE_BOOTSTRAP=address)
    assert result.returncode == 1
    assert result.stderr == (
        f"flowstone: cannot reach a broker at {address} (Connection refused): "
        "start one with `flowstone up`, or name another with --bootstrap\n"
    )


def test_a_reader_that_leaves_early_is_no_error_to_speak_of(
    prepare: Prepare, broker: flowstone.Broker, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    prepare("left-early", *((None, "x" * 1000, 1000) for _ in range(1000)))
    command = spawn("consume", "left-early")
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr.read() == ""
