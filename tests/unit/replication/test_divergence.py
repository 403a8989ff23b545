"""Where logs part ways: the cases of KIP-101 and KIP-279, and logs made at random."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.replication.divergence import find_divergence, truncation_offset
from flowstone.replication.state import DivergingEpoch


def epochs_of(*entries: tuple[int, int]) -> LeaderEpochs:
    epochs = LeaderEpochs()
    for epoch, start_offset in entries:
        epochs.assign(epoch, start_offset)
    return epochs


LEADER = epochs_of((1, 0), (2, 10), (5, 20))


@pytest.mark.parametrize(
    ("fetch_offset", "last_epoch", "diverging"),
    [
        pytest.param(25, 5, None, id="a prefix"),
        pytest.param(30, 5, None, id="all of it"),
        pytest.param(20, 2, None, id="up to an epoch's end"),
        pytest.param(0, -1, None, id="nothing yet"),
        pytest.param(31, 5, (5, 30), id="more of the last epoch"),
        pytest.param(25, 2, (2, 20), id="more of an epoch that ended"),
        pytest.param(20, 3, (2, 20), id="an epoch that the leader does not know"),
        pytest.param(22, 7, (5, 30), id="a later epoch than any record of the leader"),
        pytest.param(5, 0, (0, 0), id="an epoch before all of the leader's"),
    ],
)
def test_a_follower_hears_where_the_leader_differs(
    fetch_offset: int, last_epoch: int, diverging: tuple[int, int] | None
):
    assert find_divergence(LEADER, 30, fetch_offset, last_epoch) == diverging


def test_a_leader_without_records_has_a_follower_drop_its_own():
    assert find_divergence(LeaderEpochs(), 0, 7, 3) == (3, 0)


def test_a_leader_whose_records_are_all_deleted_takes_a_follower_that_has_as_much():
    assert find_divergence(LeaderEpochs(), 100, 100, 3) is None


@pytest.mark.parametrize(
    ("diverging", "offset"),
    [
        pytest.param((2, 20), 20, id="at the leader's end of a known epoch"),
        pytest.param((2, 40), 25, id="at one's own end of it, if that is lower"),
        pytest.param((3, 28), 25, id="of an unknown epoch: at the end of the one before"),
        pytest.param((0, 4), 0, id="where the leader's is older than all: at one's first, or the leader's end"),
        pytest.param((9, 12), 12, id="of an epoch above one's own: at the leader's end"),
    ],
)
def test_a_follower_drops_what_the_leader_does_not_have(diverging: tuple[int, int], offset: int):
    follower = epochs_of((1, 0), (2, 10), (4, 25))
    assert truncation_offset(follower, 40, DivergingEpoch(*diverging)) == offset


# A history is the epoch of each record, rising; two that come from one cluster agree wherever they have the same epoch
# at the same offset.
def _epochs(history: list[int]) -> LeaderEpochs:
    return epochs_of(*((epoch, offset) for offset, epoch in enumerate(history)))


@given(st.lists(st.integers(0, 3), max_size=8).map(sorted), st.data())
def test_a_follower_becomes_a_prefix_of_its_leader_in_a_few_rounds(shared: list[int], data: st.DataObject):
    # After what they share each wrote in epochs of its own: an epoch has one leader.
    leader = shared + sorted(data.draw(st.lists(st.sampled_from([4, 6, 8]), max_size=6)))
    follower = shared + sorted(data.draw(st.lists(st.sampled_from([5, 7, 9]), max_size=6)))
    for _ in range(len(follower) + 1):
        last_epoch = follower[-1] if follower else -1
        diverging = find_divergence(_epochs(leader), len(leader), len(follower), last_epoch)
        if diverging is None:
            break
        kept = truncation_offset(_epochs(follower), len(follower), diverging)
        assert kept < len(follower)
        follower = follower[:kept]
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(shared)
