"""`flowstone group describe` and `group watch` of a share group, from the broker's page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import flowstone
from tests.unit.cli.conftest import Call, Prepare


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(http=True) as broker:
        yield broker


def test_a_share_group_is_shown_with_what_is_in_flight(call: Call, prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("watched", (None, "a", 0), (None, "b", 0))
    with flowstone.Queue("watched", group="watchers", bootstrap=broker.bootstrap) as queue:
        task = queue.get(20)
        assert task is not None
        shown = call("group", "describe", "watchers").splitlines()
        assert shown[0].startswith("group watchers: Stable, 1 member")
        assert shown[-2].split()[-3:] == ["headroom", "in", "flight"]
        assert shown[-1].split()[:5] == ["watched", "0", "0", "2", "2"]
        assert shown[-1].split()[-1] == "2"
        task.accept()


def test_a_share_group_without_members_is_deleted_like_any_other(
    call: Call, refused: Call, prepare: Prepare, broker: flowstone.Broker
) -> None:
    prepare("left", (None, "a", 0))
    with flowstone.Queue("left", group="leavers", bootstrap=broker.bootstrap) as queue:
        assert queue.get(20) is not None
    assert call("group", "delete", "leavers") == "deleted group leavers\n"
    assert "there is no group leavers" in refused("group", "describe", "leavers")
