"""Dynamic values of settings within records: their stored form, applying changes, and computing them."""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.cluster.image.records.declaration import Form

VALUES = Form(dict, dict)


def changed_values(values: Mapping[str, str], changes: Mapping[str, str | None]) -> Mapping[str, str]:
    """Return the values with these set, or removed where a change is None."""
    merged = {**values, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def value_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that turn `before` into `after` by `changed_values`."""
    changes: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    return changes | {name: None for name in before if name not in after}
