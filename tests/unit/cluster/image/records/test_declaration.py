"""Records: what one declaration gives, and what is refused when a log is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.draft import Draft
from flowstone.cluster.image.ids import ID_BYTES, id_text, parse_id, random_id
from flowstone.cluster.image.records import (
    ClusterCreated,
    MetadataRecord,
    ProducerIdsReserved,
    TopicDeleted,
    UnknownRecord,
    decode,
    encode,
)
from flowstone.cluster.image.records.declaration import RECORD_TYPES, metadata_record, stored
from flowstone.cluster.image.replay import apply, difference, snapshot
from flowstone.errors import StorageFault


@dataclass(frozen=True, slots=True)
class ImageWithMoon(ClusterImage):
    moon: str = ""
    moon_phase: int = 0


@pytest.fixture
def moon_landed(monkeypatch: pytest.MonkeyPatch) -> type[Any]:
    """A new record type in its second version: this declaration is all that it takes."""
    types = dict(RECORD_TYPES)
    for module in ("records.declaration", "replay"):
        monkeypatch.setattr(f"flowstone.cluster.image.{module}.RECORD_TYPES", types)

    @metadata_record(levels=(1, 3))
    class MoonLanded(MetadataRecord):
        moon: str
        phase: int = stored(since=2, default=0)

        def apply(self, draft: Draft) -> None:
            draft.image = replace(draft.image, moon=self.moon, moon_phase=self.phase)  # type: ignore[call-arg]

        @classmethod
        def difference(cls, before: Any, after: Any) -> Iterator[MetadataRecord]:
            if (before.moon, before.moon_phase) != (after.moon, after.moon_phase):
                yield cls(after.moon, after.moon_phase)

    return MoonLanded


def test_one_declaration_makes_a_record_stored_replayed_and_part_of_snapshots_and_differences(
    moon_landed: type[Any],
) -> None:
    record = moon_landed("Luna", 4)
    before = ImageWithMoon()
    after = apply(before, [decode(encode(record)), ProducerIdsReserved(5)])
    assert (after.moon, after.moon_phase, after.next_producer_id) == ("Luna", 4, 5)  # type: ignore[attr-defined]
    assert set(snapshot(after)) == {record, ProducerIdsReserved(5)}
    assert record in difference(before, after)
    assert difference(after, after) == []


def test_a_record_is_stored_in_the_oldest_version_that_can_hold_it(moon_landed: type[Any]) -> None:
    plain, newer = moon_landed("Luna"), moon_landed("Luna", 4)
    assert json.loads(encode(plain)) == {"type": "MoonLanded", "version": 1, "moon": "Luna"}
    assert json.loads(encode(newer)) == {"type": "MoonLanded", "version": 2, "moon": "Luna", "phase": 4}
    assert (plain.level, newer.level) == (1, 3)
    assert [decode(encode(each)) for each in (plain, newer)] == [plain, newer]


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


@pytest.mark.parametrize(
    "data", [b'{"type":"MoonLanded","version":1}', b'{"type":"TopicDeleted","version":2,"topic_id":""}']
)
def test_a_record_of_a_newer_release_is_distinguished_from_damage_and_says_what_to_do(data: bytes) -> None:
    with pytest.raises(UnknownRecord, match=r"a newer release wrote it.*Start the release that the other brokers run"):
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
