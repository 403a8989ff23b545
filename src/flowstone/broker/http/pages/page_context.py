"""The context of a broker's HTTP pages: the parts of the broker that they read and change.

Loaded with the HTTP libraries, once the broker serves its Kafka clients, and not at all if HTTP is off.
"""

from __future__ import annotations

from typing import Protocol

from flowstone.broker.disks.disk_space import DiskSpace
from flowstone.broker.http.pages.disks import DiskPage
from flowstone.broker.http.pages.event_feed import EventFeed
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.lag.late_transactions import LateTransactions
from flowstone.broker.metrics.scrape import Scrape
from flowstone.broker.network.server import Server
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.branching import TopicBranches


class Condition(Protocol):
    """The state of the broker that health probes report."""

    def failure(self) -> str | None:
        """Return why the broker cannot do its work any more, or None while it can."""
        ...

    def is_serving(self) -> bool:
        """Return whether Kafka clients are accepted."""
        ...


class PageContext:
    """The parts of one broker that its pages read and change."""

    def __init__(
        self,
        condition: Condition,
        services: Services,
        server: Server,
        survey: GroupSurvey,
        disks: DiskSpace,
        late_transactions: LateTransactions,
    ) -> None:
        self.condition, self.services, self.survey = condition, services, survey
        self.scrape = Scrape(services, server, survey, disks, late_transactions)
        self.disk_page = DiskPage(services, disks)
        self.branches = TopicBranches(services)
        self.feed = EventFeed(services, survey)

    def stop(self) -> None:
        """Cancel the branches that are being made."""
        self.branches.stop()

    @property
    def cluster_id(self) -> str:
        """Return the cluster's id, by which a client notices that an address belongs to another cluster."""
        return self.services.logs.identity.cluster_id
