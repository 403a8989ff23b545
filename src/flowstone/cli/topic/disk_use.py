"""A topic's disk usage from the brokers' page `/disks`, for `flowstone topic describe`.

If the page is off or unreachable, or the broker is not Flowstone, the reason is kept for the output, and the command
continues without this data.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple
from urllib.parse import quote

from confluent_kafka.admin import AdminClient

from flowstone.cli.common.broker_pages import OK, PAGE_ERRORS, SETTING, ask, find_pages
from flowstone.cli.common.text import size_text
from flowstone.cli.group.tables import NOTHING, duration

# Fields of a partition, with their column titles.
COLUMNS = {
    "size_bytes": "size",
    "segments": "segments",
    "oldest_timestamp_ms": "oldest",
    "growth_bytes_per_second": "growth",
}
_FIELDS = ("directory", *COLUMNS)


class TopicDisks(NamedTuple):
    partitions: dict[int, dict[str, Any]]  # by partition number, without offline ones
    directories: list[dict[str, Any]]
    problem: str | None  # why they are unknown

    def fields(self, number: int) -> dict[str, Any]:
        """Return a partition's part of the JSON document, with null for unknown values."""
        found = self.partitions.get(number, {})
        return {name: found.get(name) for name in _FIELDS}

    def cells(self, number: int) -> list[str]:
        found = self.fields(number)
        size_bytes, oldest_ms, growth = (
            found["size_bytes"],
            found["oldest_timestamp_ms"],
            found["growth_bytes_per_second"],
        )
        return [
            size_text(size_bytes) if size_bytes is not None else NOTHING,
            str(found["segments"]) if found["segments"] is not None else NOTHING,
            duration(max(time.time() - oldest_ms / 1000, 0)) if oldest_ms is not None else NOTHING,
            f"{size_text(round(growth))}/s" if growth is not None else NOTHING,
        ]

    def lines(self) -> list[str]:
        if self.problem is not None:
            return [f"sizes, ages and free disk space are not known: {self.problem}"]
        # A topic without records does not fill a disk, so the forecast is omitted.
        is_empty = not any(each["size_bytes"] for each in self.partitions.values())
        return [_directory_line(each, with_forecast=not is_empty) for each in self.directories]


def read_disks(admin: AdminClient, bootstrap: str, topic: str) -> TopicDisks:
    pages = find_pages(admin, bootstrap)
    problem = None if pages.addresses else f"the broker serves no HTTP pages ({SETTING} is off)"
    partitions: dict[int, dict[str, Any]] = {}
    directories: list[dict[str, Any]] = []
    for address in pages.addresses:
        try:
            status, page = ask(address, f"/disks?topic={quote(topic, safe='')}")
            if status != OK:
                raise ValueError(f"status {status}")
            if page["cluster_id"] != pages.cluster_id:
                raise ValueError("it is another cluster's")
            partitions |= {each["partition"]: each for each in page["partitions"]}
            directories += page["directories"]
        except PAGE_ERRORS as error:
            problem = f"the broker's page http://{address[0]}:{address[1]}/disks cannot be read ({error})"
    return TopicDisks(partitions, directories, problem)


def _directory_line(directory: dict[str, Any], *, with_forecast: bool) -> str:
    if directory["state"] != "online":
        return f"disk {directory['path']}: OFFLINE, {directory['reason']}"
    space = f"{size_text(directory['usable_bytes'])} free of {size_text(directory['total_bytes'])}"
    if directory["refuses_records"]:
        return f"disk {directory['path']}: FULL, {space}: new records are refused"
    scarce = " (LOW)" if directory.get("is_low") else ""
    forecast = f", {_forecast(directory)}" if with_forecast else ""
    return f"disk {directory['path']}: {space}{scarce}{forecast}"


def _forecast(directory: dict[str, Any]) -> str:
    """Return when the disk will be full, and on what this forecast is based."""
    if not directory.get("has_enough_history"):
        return "no forecast yet: too little history"
    history, grown_bytes = duration(directory["history_seconds"]), directory["grown_bytes"]
    if directory["seconds_left"] is not None:
        full = duration(directory["seconds_left"])
        return f"full in {full} if its logs keep growing as in the last {history}, by {size_text(grown_bytes)}"
    if directory["filling_bytes_per_second"] > 0:
        return f"its logs grew by {size_text(grown_bytes)} in {history}, not full for a long time"
    return f"its logs did not grow in the last {history}"
