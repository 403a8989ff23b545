"""Calling those who follow a metadata log: in their order, and whatever one of them does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import MetadataRecord, ProducerIdsReserved
from flowstone.cluster.logs.log_listeners import LogListeners
from flowstone.errors import StorageFault


def test_every_listener_is_called_in_order_with_what_it_asked_for() -> None:
    heard: list[object] = []
    listeners, records, fault = LogListeners(), [ProducerIdsReserved(1)], StorageFault("gone")
    listeners.on_commit(lambda records, image: heard.append(("first", records, image)))
    listeners.on_commit(lambda records, image: heard.append(("second", records, image)))
    listeners.on_refusal(lambda: heard.append("refused"))
    listeners.on_failure(heard.append)
    listeners.committed(records, EMPTY_IMAGE)
    listeners.refused()
    listeners.failed(fault)
    assert heard == [("first", records, EMPTY_IMAGE), ("second", records, EMPTY_IMAGE), "refused", fault]


def test_a_listener_that_fails_keeps_no_other_from_hearing_of_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        raise KeyError("a mistake")

    heard: list[ClusterImage] = []
    listeners = LogListeners()
    listeners.on_commit(stumble)
    listeners.on_commit(lambda records, image: heard.append(image))
    listeners.committed([], EMPTY_IMAGE)
    assert heard == [EMPTY_IMAGE]
    assert "a mistake" in caplog.text
