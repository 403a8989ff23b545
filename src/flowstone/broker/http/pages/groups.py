"""The page `/groups`: consumer groups and their lag as JSON, `/groups?group=NAME` for one of them.

A caller sees the groups and, in each, the topics that it may describe, as with DescribeGroups and OffsetFetch.

The document is encoded in time slices, so that a group of many partitions does not hold the event loop. Groups beyond
the limits are left out and counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from flowstone.broker.http.page import (
    GET,
    GROUP_ID_CHARACTERS_MAX,
    Answer,
    Page,
    PageRequest,
    Text,
)
from flowstone.broker.http.pages.json_documents import encode_json
from flowstone.broker.lag.group_status import GroupStatus, group_document, seen_parts
from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices, yield_to_loop
from flowstone.broker.requests.permissions import GROUP_DESCRIBE, TOPIC_DESCRIBE

if TYPE_CHECKING:
    from flowstone.broker.http.pages.page_context import PageContext

GROUPS_MAX = 1000
# About 3 MB. One group is shown whole, however large.
PARTITIONS_MAX = 10_000


async def _groups(context: PageContext, request: PageRequest) -> Answer:
    slices = TimeSlices(context.services.clock.monotonic)
    group_id = request.text("group")
    if group_id is not None:
        one = await context.survey.group(group_id)
        found: Sequence[GroupStatus] = [one] if one is not None else []
    else:
        everything, may = await context.survey.all_groups(), request.caller.may
        found = [each async for each in slices.over(everything) if may(GROUP_DESCRIBE, each.group_id)]
    encoded: list[str] = []
    partition_count = 0
    may_see = partial(request.caller.may, TOPIC_DESCRIBE)
    for whole in found:
        group = seen_parts(whole, may_see)
        partition_count += len(group.partitions)
        if len(encoded) == GROUPS_MAX or (encoded and partition_count > PARTITIONS_MAX):
            break
        encoded.append(await run_in_slices(encode_json(group_document(group, iter)), slices))
        await yield_to_loop()
    rest = json.dumps({"left_out": len(found) - len(encoded), "cluster_id": context.cluster_id})
    return Answer(f'{{"groups": [{", ".join(encoded)}], {rest[1:]}'.encode())


GROUPS = Page(
    GET,
    "/groups",
    summary="consumer groups, their members and their lag: see [consumer groups](groups.md)",
    permissions=(GROUP_DESCRIBE, TOPIC_DESCRIBE),
    handler=_groups,
    checks_names=True,
    parameters=(Text("group", GROUP_ID_CHARACTERS_MAX),),
)
