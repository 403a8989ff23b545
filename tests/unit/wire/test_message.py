"""The generated classes."""

from __future__ import annotations

import pytest

from flowstone.wire import messages
from flowstone.wire.messages import FetchRequest, FetchRequestTopic, MetadataRequest, ProduceResponsePartition


def test_a_message_is_made_from_keywords_and_schema_defaults():
    request = FetchRequest(min_bytes=1)
    assert (request.min_bytes, request.session_epoch, request.max_bytes, request.cluster_id) == (
        1,
        -1,
        0x7FFFFFFF,
        None,
    )


def test_positional_fields_are_refused():
    with pytest.raises(TypeError):
        FetchRequest(1)  # type: ignore[misc]


def test_a_misspelt_field_is_refused():
    with pytest.raises(AttributeError):
        FetchRequest().min_byte = 1  # type: ignore[attr-defined]


def test_messages_are_equal_by_type_and_fields():
    assert FetchRequest(topics=()) == FetchRequest(topics=[])
    assert FetchRequest(topics=[FetchRequestTopic(topic="a")]) != FetchRequest(topics=[FetchRequestTopic(topic="b")])
    assert MetadataRequest(topics=None) != MetadataRequest(topics=[])
    assert FetchRequest() != MetadataRequest()


def test_a_message_shows_its_fields():
    assert repr(FetchRequestTopic(topic="t")).startswith("FetchRequestTopic(topic='t', topic_id=b'")


def test_every_class_is_exported_and_the_table_is_not():
    assert messages.ProduceResponsePartition is ProduceResponsePartition
    assert not hasattr(messages, "API_TABLE")
