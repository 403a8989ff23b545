"""What only the broker's own `/groups` page tells: lag in seconds, headroom, and why the last rebalance happened.

Where the page is, the broker says itself (its setting `http.listener`). Where it cannot be had, be it off, out of reach
or a broker of another make, the reason is kept for people to be told, and the commands go on without it.
"""

from __future__ import annotations

from urllib.parse import quote

from confluent_kafka.admin import AdminClient

from flowstone.broker.lag.group_status import GroupStatus, read_group_document
from flowstone.cli.common.broker_pages import OK, PAGE_ERRORS, SETTING, ask, find_pages


class GroupPages:
    """The pages of all brokers of a cluster."""

    def __init__(self, admin: AdminClient, bootstrap: str) -> None:
        self._addresses, self._cluster_id = find_pages(admin, bootstrap)
        # Why seconds and headroom are not known, as of the last look; None if they are.
        self.problem = None if self._addresses else f"the broker serves no HTTP pages ({SETTING} is off)"

    def complete(self, groups: list[GroupStatus]) -> list[GroupStatus]:
        """The groups with what the pages say about them."""
        one = f"?group={quote(groups[0].group_id, safe='')}" if len(groups) == 1 else ""
        told: dict[str, GroupStatus] = {}
        for address in self._addresses:
            self.problem = None
            try:
                status, page = ask(address, f"/groups{one}")
                if status != OK:
                    raise ValueError(f"status {status}")
                if page["cluster_id"] != self._cluster_id:
                    raise ValueError("it is another cluster's")
                told |= {each["group"]: read_group_document(each) for each in page["groups"]}
            except PAGE_ERRORS as error:
                self.problem = f"the broker's page http://{address[0]}:{address[1]}/groups cannot be read ({error})"
        return [_merge(group, told[group.group_id]) if group.group_id in told else group for group in groups]


def _merge(group: GroupStatus, told: GroupStatus) -> GroupStatus:
    """Who is where is as the protocol said; how far they are is as the page says, all of it, so that it fits."""
    lags = {(each.topic, each.partition): each for each in told.partitions}
    return group._replace(
        generation=told.generation,
        topics=told.topics,
        partitions=tuple(
            lags.get((each.topic, each.partition), each)._replace(member_id=each.member_id) for each in group.partitions
        ),
        rebalance_count=told.rebalance_count,
        rebalance_reason=told.rebalance_reason,
        rebalance_timestamp_ms=told.rebalance_timestamp_ms,
    )
