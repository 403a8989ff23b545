"""The HTTP pages of a broker, in the order in which docs/monitoring.md lists them."""

from __future__ import annotations

from flowstone.broker.http.pages.branch import BRANCH
from flowstone.broker.http.pages.disks import DISKS
from flowstone.broker.http.pages.events import EVENTS
from flowstone.broker.http.pages.explain import EXPLAIN
from flowstone.broker.http.pages.groups import GROUPS
from flowstone.broker.http.pages.health import HEALTH, READY
from flowstone.broker.http.pages.metrics import METRICS
from flowstone.broker.http.pages.restore import RESTORE

PAGES = (HEALTH, READY, METRICS, GROUPS, DISKS, EVENTS, EXPLAIN, BRANCH, RESTORE)
