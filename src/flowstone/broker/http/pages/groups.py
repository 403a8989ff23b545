"""The page `/groups`: consumer groups and their lag as JSON, `/groups?group=NAME` for one of them.

It is encoded group by group, with turns for others in between. What is beyond the limits is left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from flowstone.broker.lag.group_status import GroupStatus, group_document
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.loop.time_slices import others_turn

GROUPS_MAX = 1000
# About 3 MB. One group is shown whole, however large.
PARTITIONS_MAX = 10_000


async def groups_page(survey: GroupSurvey, group_id: str | None, cluster_id: str) -> bytes:
    """The cluster's id tells a client whether the page it found is that of the broker it has asked."""
    if group_id is not None:
        one = await survey.group(group_id)
        found: Sequence[GroupStatus] = [one] if one is not None else []
    else:
        found = await survey.all_groups()
    encoded: list[str] = []
    partition_count = 0
    for group in found:
        partition_count += len(group.partitions)
        if len(encoded) == GROUPS_MAX or (encoded and partition_count > PARTITIONS_MAX):
            break
        encoded.append(json.dumps(group_document(group)))
        await others_turn()
    rest = json.dumps({"left_out": len(found) - len(encoded), "cluster_id": cluster_id})
    return f'{{"groups": [{", ".join(encoded)}], {rest[1:]}'.encode()
