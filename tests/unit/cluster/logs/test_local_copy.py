"""The copy of a cluster's metadata that a broker keeps: always a prefix, never in the way."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import BrokerConfigChanged, ClusterCreated, MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs import local_copy
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles


def open_copy(files: Any) -> LocalCopy:
    return LocalCopy(files, ["/data"], SimulatedClock())


def load(files: Any) -> ClusterImage:
    copy = open_copy(files)
    image = copy.load()
    copy.close()
    return image


def note(number: int) -> list[MetadataRecord]:
    return [BrokerConfigChanged("1", {"key": str(number)})]


def test_what_is_saved_survives_a_power_loss() -> None:
    files = SimulatedFiles()
    copy = open_copy(files)
    assert copy.load() == EMPTY_IMAGE
    image = apply(EMPTY_IMAGE, records := [ClusterCreated("cluster")])
    copy.save(records, image)
    files.lose_power()
    assert load(files) == image


def test_records_that_do_not_follow_replace_the_whole_copy() -> None:
    files = SimulatedFiles()
    copy = open_copy(files)
    copy.load()
    image = apply(EMPTY_IMAGE, note(0))
    copy.save(note(0), image)
    for number in range(1, 10):
        image = apply(image, note(number))
    copy.save([], image)
    assert load(files) == image


def test_a_copy_that_has_grown_far_is_replaced_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_copy, "COMPACTION_MIN_BYTES", 1000)
    files = SimulatedFiles()
    copy = open_copy(files)
    image = copy.load()
    for number in range(200):
        image = apply(image, note(number))
        copy.save(note(number), image)
    assert files.size(copy.path) < 2000
    assert load(files) == image


def test_a_disk_that_fails_costs_the_copy_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    copy = open_copy(files)
    image = apply(copy.load(), note(0))
    copy.save(note(0), image)
    files.fail_next("sync")
    copy.save(note(1), apply(image, note(1)))
    copy.save(note(2), apply(apply(image, note(1)), note(2)))
    assert caplog.text.count("no longer kept") == 1


def test_a_mark_tells_it_from_a_single_brokers_log() -> None:
    files = SimulatedFiles()
    copy = open_copy(files)
    copy.load()
    assert not copy.is_marked
    copy.mark()
    files.lose_power()
    assert open_copy(files).is_marked
