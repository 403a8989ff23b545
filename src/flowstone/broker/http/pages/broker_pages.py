"""What the broker's HTTP pages are made of, gathered here so that nothing of it is loaded where HTTP is off.

Where it is on, this is loaded with the HTTP libraries once the broker serves its own clients (`http`).
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.broker.disks.disk_space import DiskSpace
from flowstone.broker.http.listener import Condition
from flowstone.broker.http.pages.branch import branch_page
from flowstone.broker.http.pages.disks import DiskPage
from flowstone.broker.http.pages.explain import explain_page
from flowstone.broker.http.pages.groups import groups_page
from flowstone.broker.http.pages.restore import restore_page
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.metrics.scrape import Scrape
from flowstone.broker.network.server import Server
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.branching import TopicBranches
from flowstone.broker.topics.offset_explanation import Explaining


class BrokerPages:
    """`http.Pages`, of one broker."""

    def __init__(
        self, condition: Condition, services: Services, server: Server, survey: GroupSurvey, disks: DiskSpace
    ) -> None:
        self.failure, self.is_serving = condition.failure, condition.is_serving
        self._services, self._survey = services, survey
        self._scrape = Scrape(services, server, survey, disks)
        self._disk_page = DiskPage(services, disks)
        self._branches = TopicBranches(services)

    def stop(self) -> None:
        """Gives up what somebody asked for and is still being done."""
        self._branches.stop()

    async def metrics(self) -> bytes:
        return await self._scrape.text()

    async def groups(self, group_id: str | None) -> bytes:
        return await groups_page(self._survey, group_id, self._cluster_id)

    async def disks(self, topic: str | None) -> bytes:
        return await self._disk_page.write(topic)

    async def explain(self, asked: Mapping[str, str]) -> tuple[int, bytes]:
        return await explain_page(Explaining(self._services, self._survey), self._cluster_id, asked)

    async def branch(self, body: bytes) -> tuple[int, bytes]:
        return await branch_page(self._branches, self._cluster_id, body)

    async def restore(self, body: bytes) -> tuple[int, bytes]:
        return await restore_page(self._services, body)

    @property
    def _cluster_id(self) -> str:
        return self._services.logs.identity.cluster_id
