"""`flowstone dlq`, on letters that a share group has left."""

from __future__ import annotations

import json

import flowstone
from tests.unit.cli.conftest import Call
from tests.unit.cli.dlq.conftest import Reject, committed, open_letters, values, written


def test_letters_are_counted_by_group_and_source_and_shown_with_their_history(
    call: Call, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    listed = [json.loads(line) for line in call("dlq", "list", "--json").splitlines()]
    assert {"topic": f"dlq.{topic}", "group": f"group-{topic}", "source": topic, "open": 2} in listed
    assert call("dlq", "list", f"dlq.{topic}").splitlines()[1].split() == [f"dlq.{topic}", f"group-{topic}", topic, "2"]
    first, _second = open_letters(call, topic)
    assert (first["origin"], first["group"], first["delivery_count"]) == (f"{topic}/1@0", f"group-{topic}", 1)
    assert (first["key"], first["value"], first["headers"], first["open"]) == ("k-a", "a", [["h", "x"]], True)
    assert first["cause"]
    shown = call("dlq", "show", f"dlq.{topic}/0@1").splitlines()
    assert shown[0] == f"letter dlq.{topic}/0@1"
    assert shown[-1].split() == ["value", "b"]
    assert "only the first 1 letter" in call("dlq", "show", f"dlq.{topic}", "--max", "1")


def test_a_retry_writes_each_letter_back_once_with_its_history(
    call: Call, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 2 letters\n"
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 0 letters\n"
    assert committed(broker, topic) == 2
    back = written(broker, topic, 2)
    assert [(each.key, each.value) for each in back] == [(b"k-a", b"a"), (b"k-b", b"b")]
    headers = dict(back[1].headers)
    assert headers.pop("flowstone.retried-cause")
    assert headers == {
        "h": b"x",
        "flowstone.retried-from": f"dlq.{topic}/0@1".encode(),
        "flowstone.retried-origin": f"{topic}/1@1".encode(),
        "flowstone.retried-group": f"group-{topic}".encode(),
        "flowstone.retried-count": b"1",
    }
    reject(others=2)
    assert [each["letter"] for each in open_letters(call, topic)] == [f"dlq.{topic}/0@2", f"dlq.{topic}/0@3"]
    assert json.loads(call("dlq", "retry", f"dlq.{topic}", "--json")) == {"retried": 2, "open": 0, "problems": []}
    last = written(broker, topic, 5)[-1]  # a transaction's end marker has an offset, too
    assert [value for name, value in last.headers if name == "flowstone.retried-from"] == [
        f"dlq.{topic}/0@1".encode(),
        f"dlq.{topic}/0@3".encode(),
    ]
    assert dict(last.headers)["flowstone.retried-count"] == b"2"


def test_dropped_letters_are_not_retried(
    call: Call, refused: Call, broker: flowstone.Broker, topic: str, reject: Reject
) -> None:
    reject("a", "b")
    assert "2 letters of" in refused("dlq", "drop", f"dlq.{topic}")
    assert json.loads(call("dlq", "drop", f"dlq.{topic}", "--yes", "--json")) == {"dropped": 2}
    assert call("dlq", "retry", f"dlq.{topic}") == "retried 0 letters\n"
    assert call("dlq", "list", f"dlq.{topic}") == ""
    assert values(broker, topic, 0) == [b"a", b"b"]
