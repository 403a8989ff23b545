"""The metrics of consumer groups, from the last survey.

The number of labels is bounded: groups are listed by name up to a limit. Those beyond it, and those whose names are too
long for a label, are only counted by state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.metrics.exposition import Exposition, label_text

GROUP_LABELS_MAX = 200
# Partitions with labels of their own, over all groups.
PARTITION_LABELS_MAX = 1000
GROUP_NAME_LABEL_MAX = 249  # the longest a topic's name can be


async def write_groups(page: Exposition, groups: Sequence[GroupStatus]) -> None:
    counts = Counter([group.state for group in groups])
    states = {label_text(state=state): count for state, count in counts.items()}
    page.gauge("flowstone_groups", "Consumer groups this broker coordinates.", states)
    short = (group for group in groups if len(group.group_id) <= GROUP_NAME_LABEL_MAX)
    named = list(islice(short, GROUP_LABELS_MAX))
    _write_groups(page, named)
    await yield_to_loop()
    await _write_partitions(page, named)


def _write_groups(page: Exposition, groups: Sequence[GroupStatus]) -> None:
    labelled = [(label_text(group=group.group_id), group) for group in groups]
    members = {labels: len(group.members) for labels, group in labelled}
    page.gauge("flowstone_group_members", "Members of the group.", members)
    rebalances = {labels: group.rebalance_count for labels, group in labelled}
    page.counter("flowstone_group_rebalances_total", "Rebalances of the group.", rebalances)
    low = {labels: sum(each.is_headroom_low for each in group.partitions) for labels, group in labelled}
    page.gauge(
        "flowstone_group_headroom_low_partitions",
        "Partitions whose next unread record retention deletes soon, or has deleted.",
        low,
    )


async def _write_partitions(page: Exposition, groups: Sequence[GroupStatus]) -> None:
    lags: dict[str, float] = {}
    lag_seconds: dict[str, float] = {}
    headroom_seconds: dict[str, float] = {}
    lost: dict[str, float] = {}
    in_flight: dict[str, float] = {}
    committed = ((group, each) for group in groups for each in group.partitions if each.lag is not None)
    for group, partition in committed:
        if len(lags) == PARTITION_LABELS_MAX:
            break
        labels = label_text(group=group.group_id, topic=partition.topic, partition=partition.partition)
        lags[labels] = partition.lag or 0
        lost[labels] = partition.lost
        if partition.in_flight is not None:
            in_flight[labels] = partition.in_flight
        if partition.lag_seconds is not None:
            lag_seconds[labels] = partition.lag_seconds
        if partition.headroom_seconds is not None:
            headroom_seconds[labels] = partition.headroom_seconds
    for name, help_text, samples in (
        ("flowstone_group_lag_records", "Records from the committed offset to the high watermark.", lags),
        ("flowstone_group_lag_seconds", "Age of the next unread record.", lag_seconds),
        ("flowstone_group_headroom_seconds", "Until retention deletes the next unread record.", headroom_seconds),
        (
            "flowstone_group_in_flight_records",
            "Records that members of a share group have locked, in partitions that this broker leads.",
            in_flight,
        ),
        ("flowstone_group_lost_records", "Records deleted by retention before the group read them.", lost),
    ):
        page.gauge(name, help_text, samples)
        await yield_to_loop()
