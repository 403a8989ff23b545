"""Records that are read from the source topic, because only their headers were kept."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import flowstone
from tests.unit.cli.conftest import Call, Run
from tests.unit.cli.dlq.conftest import Reject, committed, open_letters, written


def test_a_letter_of_headers_alone_is_retried_from_the_source_if_it_is_there(
    call: Call, run: Run, broker: flowstone.Broker, topic: str, reject: Reject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstone.cli.dlq.settling.LETTERS_MAX", 1)  # a transaction for each
    reject("a", "b", "c", copied=False)
    assert "only headers were kept" in call("dlq", "show", f"dlq.{topic}/0@1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_records([TopicPartition(topic, 1, 1)])[TopicPartition(topic, 1)].result()
    result = run("dlq", "retry", f"dlq.{topic}", "--bootstrap", broker.bootstrap)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "retried 2 letters"
    assert f"{topic}/1@0 is no longer there" in result.stdout
    assert result.stderr.startswith("flowstone: 1 letter cannot be retried and stays open: ")
    back = written(broker, topic, 3)
    assert [(each.key, each.value) for each in back] == [(b"k-b", b"b"), (b"k-c", b"c")]
    assert dict(back[0].headers)["h"] == b"x"
    assert [each["letter"] for each in open_letters(call, topic)] == [f"dlq.{topic}/0@0"]
    assert call("dlq", "drop", f"dlq.{topic}", "--yes") == "dropped 1 letter\n"
    assert committed(broker, topic) == 3
