"""Data that only the broker's page `/groups` provides: lag in seconds, headroom, and the reason of the last rebalance.

The broker reports the address of the page (its setting `http.listener`). If the page is off or unreachable, or the
broker is not Flowstone, the reason is kept for the output, and the commands continue without this data.
"""

from __future__ import annotations

from urllib.parse import quote

from confluent_kafka.admin import AdminClient

from flowstone.broker.lag.group_status import CONSUMER, SHARE, GroupStatus, read_group_document
from flowstone.cli.common.broker_pages import OK, PAGE_ERRORS, SETTING, ask, find_pages


class GroupPages:
    """The `/groups` pages of all brokers of a cluster."""

    def __init__(self, admin: AdminClient, bootstrap: str) -> None:
        self._addresses, self._cluster_id = find_pages(admin, bootstrap)
        # Why seconds and headroom were unknown in the last view; None if they were known.
        self.problem = None if self._addresses else f"the broker serves no HTTP pages ({SETTING} is off)"

    def complete(self, groups: list[GroupStatus]) -> list[GroupStatus]:
        """Return the groups with the data from the pages added."""
        told = self._ask(groups[0].group_id if len(groups) == 1 else None)
        return [_merge(group, told[group.group_id]) if group.group_id in told else group for group in groups]

    def share_group(self, group_id: str) -> list[GroupStatus]:
        """Return the share group of this name, if there is one and its broker serves the page."""
        return [each for each in self._ask(group_id).values() if each.type == SHARE]

    def _ask(self, group_id: str | None) -> dict[str, GroupStatus]:
        """Return the state of one group, or of all, from the brokers' HTTP pages."""
        one = "" if group_id is None else f"?group={quote(group_id, safe='')}"
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
        return told


def _merge(group: GroupStatus, told: GroupStatus) -> GroupStatus:
    """Return members and owners from the protocol, with offsets and lag from the page, which are consistent."""
    lags = {(each.topic, each.partition): each for each in told.partitions}
    details = {each.member_id: each for each in told.members}
    return group._replace(
        state=told.state if told.type == CONSUMER else group.state,
        type=told.type,
        assignment_epoch=told.assignment_epoch,
        unsettled=told.unsettled,
        members=tuple(details.get(each.member_id, each)._replace(partitions=each.partitions) for each in group.members),
        generation=told.generation,
        topics=told.topics,
        partitions=tuple(
            lags.get((each.topic, each.partition), each)._replace(member_id=each.member_id) for each in group.partitions
        ),
        rebalance_count=told.rebalance_count,
        rebalance_reason=told.rebalance_reason,
        rebalance_timestamp_ms=told.rebalance_timestamp_ms,
    )
