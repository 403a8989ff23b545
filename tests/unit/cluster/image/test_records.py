"""Records: what is refused when a log is loaded. That they survive the trip is shown in test_replay."""

from __future__ import annotations

import json

import pytest

from flowstone.cluster.image.ids import ID_BYTES, id_text, parse_id, random_id
from flowstone.cluster.image.records import ClusterCreated, TopicDeleted, decode, encode
from flowstone.errors import StorageFault


def test_a_record_names_its_type_and_version() -> None:
    assert json.loads(encode(ClusterCreated("abc"))) == {"type": "ClusterCreated", "version": 1, "cluster_id": "abc"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b'{"type":"MoonLanded","version":1}', "unknown type 'MoonLanded'"),
        (b'{"type":"TopicDeleted","version":9,"topic_id":""}', "TopicDeleted of version 9"),
        (b'{"type":"TopicDeleted","version":1}', "TopicDeleted record of the metadata log is malformed"),
        (b'{"type":"TopicDeleted","version":1,"topic_id":"short"}', "malformed"),
        (b'{"version":1}', "not JSON with a type and a version"),
        (b"[]", "not JSON with a type and a version"),
        (b"\xff", "not JSON with a type and a version"),
    ],
)
def test_a_record_that_is_not_understood_is_refused_in_a_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(StorageFault, match=sentence):
        decode(data)


def test_ids_are_shown_as_kafka_shows_them() -> None:
    assert id_text(bytes(16)) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert parse_id("AAAAAAAAAAAAAAAAAAAAAA") == bytes(ID_BYTES)
    assert decode(encode(TopicDeleted(b"\xff" * 16))) == TopicDeleted(b"\xff" * 16)


def test_a_new_id_is_random_and_fit_for_a_command_line() -> None:
    made = {random_id() for _ in range(500)}
    assert len(made) == 500
    assert not any(id_text(each).startswith("-") for each in made)


@pytest.mark.parametrize("text", ["", "AAAA", "AAAAAAAAAAAAAAAAAAAA!!", "AAAAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_what_is_not_an_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_id(text)
