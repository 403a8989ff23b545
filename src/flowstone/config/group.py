"""The settings of a group, consumer or share, and the checks that involve several settings.

The default of most is a setting of the broker, and two more settings of the broker bound it. A group's value that is
outside of these bounds is refused. A value that was stored before the bounds changed is moved into them when it is
used (`effective_group_settings`).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flowstone.config.coordinators import CoordinatorConfig
from flowstone.config.setting import DAY_MS, INT_MAX, MINUTE_MS, Kind, Setting, Value, broker_setting
from flowstone.errors import ConfigError

_DURATION_PREFIX = "by_duration:"
# A duration of ISO 8601 as Java's Duration.parse takes it, without a sign: PnDTnHnMn.nS.
_DURATION = re.compile(r"P(?=.)(\d{1,9}D)?(T(?=.)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}(\.\d{1,9})?S)?)?", re.IGNORECASE)


def _bounded(name: str, doc: str) -> Any:
    """Declare a setting whose default is the broker's `group.<name>` and whose bounds are its minimum and maximum."""
    kind, _, rest = name.partition(".")
    broker_name = f"group.{name}"
    default = _BROKER_DEFAULTS[broker_name]
    return dataclasses.field(
        default=default,
        metadata={
            "setting": Setting(name, Kind.INT, default, doc, broker_names=((broker_name, 1),), read_only=False),
            "low": f"group.{kind}.min.{rest}",
            "high": f"group.{kind}.max.{rest}",
        },
    )


def _own(name: str, kind: Kind, default: Value, doc: str, **more: Any) -> Any:
    """Declare a setting that only groups have."""
    return broker_setting(name, kind, default, doc, read_only=False, **more)


_BROKER_FIELDS = {
    each.metadata["setting"].name: each for each in dataclasses.fields(CoordinatorConfig) if "setting" in each.metadata
}
_BROKER_DEFAULTS: dict[str, Value] = {name: each.metadata["setting"].default for name, each in _BROKER_FIELDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a group."""

    consumer_session_timeout_ms: int = _bounded(
        "consumer.session.timeout.ms", "How long a member may send no heartbeat before it is removed."
    )
    consumer_heartbeat_interval_ms: int = _bounded(
        "consumer.heartbeat.interval.ms", "How often the members send heartbeats."
    )
    consumer_assignment_interval_ms: int = _bounded(
        "consumer.assignment.interval.ms", "Minimum time between two assignments of the group."
    )
    share_session_timeout_ms: int = _bounded(
        "share.session.timeout.ms", "How long a member may send no heartbeat before it is removed."
    )
    share_heartbeat_interval_ms: int = _bounded("share.heartbeat.interval.ms", "How often the members send heartbeats.")
    share_assignment_interval_ms: int = _bounded(
        "share.assignment.interval.ms", "Minimum time between two assignments of the group."
    )
    share_record_lock_duration_ms: int = _bounded(
        "share.record.lock.duration.ms", "How long an acquired record is locked for the member that acquired it."
    )
    share_delivery_count_limit: int = _bounded(
        "share.delivery.count.limit", "How often a record that is not accepted is delivered before it is archived."
    )
    share_partition_max_record_locks: int = _bounded(
        "share.partition.max.record.locks", "Maximum number of records of a partition in delivery."
    )
    share_auto_offset_reset: str = _own(
        "share.auto.offset.reset",
        Kind.STRING,
        "latest",
        "Where the group begins in a partition that it has not read: latest, earliest, or by_duration: and a duration "
        "of ISO 8601, such as by_duration:PT1H for the records of the last hour.",
    )
    share_isolation_level: str = _own(
        "share.isolation.level",
        Kind.STRING,
        "read_uncommitted",
        "Whether the group reads only records of committed transactions (read_committed) or all (read_uncommitted).",
        choices=("read_committed", "read_uncommitted"),
    )
    share_renew_acknowledge_enable: bool = _own(
        "share.renew.acknowledge.enable", Kind.BOOLEAN, True, "Whether members may renew the locks of records."
    )
    share_ordering: str = _own(
        "share.ordering",
        Kind.STRING,
        "none",
        "key: a record is delivered only when all earlier records with its key in the partition are accepted or "
        "archived; none: in any order. It can be changed while the group has no members.",
        choices=("none", "key"),
    )
    share_redelivery_backoff_ms: int = _own(
        "share.redelivery.backoff.ms",
        Kind.INT,
        0,
        "How long a record waits before its second delivery; doubled for each further one. 0: no delay.",
        low=0,
        high=DAY_MS,
    )
    share_redelivery_backoff_max_ms: int = _own(
        "share.redelivery.backoff.max.ms",
        Kind.INT,
        MINUTE_MS,
        "The longest time that a record waits before another delivery.",
        low=0,
        high=DAY_MS,
    )
    share_lookahead: int = _own(
        "share.lookahead",
        Kind.INT,
        100_000,
        "With share.ordering=key: how many offsets after the first unfinished record of a partition are searched for "
        "records whose keys are free.",
        low=1000,
        high=1_000_000,
    )
    errors_deadletterqueue_topic_name: str = _own(
        "errors.deadletterqueue.topic.name",
        Kind.STRING,
        "",
        "The topic to which records are copied that a share group rejects, or that were delivered too often; empty: "
        "none. It must exist, and its errors.deadletterqueue.group.enable must be true.",
    )
    errors_deadletterqueue_copy_record_enable: bool = _own(
        "errors.deadletterqueue.copy.record.enable",
        Kind.BOOLEAN,
        False,
        "Whether copies in the dead letter queue have the key and the value of the record, or only headers that say "
        "where the record is.",
    )


_FIELDS = {each.metadata["setting"].name: each for each in dataclasses.fields(GroupSettings)}
GROUP_SETTINGS: Mapping[str, Setting] = {name: each.metadata["setting"] for name, each in _FIELDS.items()}


def broker_group_values(broker: CoordinatorConfig) -> dict[str, str]:
    """Return the broker's defaults of group settings as text, by the group settings' names."""
    return {
        name: setting.format(_broker_value(broker, setting.broker_names[0][0]))
        for name, setting in GROUP_SETTINGS.items()
        if setting.broker_names
    }


def parse_group_settings(broker: CoordinatorConfig, values: Mapping[str, str]) -> GroupSettings:
    """Return the settings of a group with these values of its own.

    Raises ConfigError for an unknown name, and for a value that the broker's bounds or another setting forbid.
    """
    settings = _parse(broker, values, strict=True)
    for kind in ("consumer", "share"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if (session in values or heartbeat in values) and _value(settings, session) <= _value(settings, heartbeat):
            raise ConfigError(f"{session} must be greater than {heartbeat}")
    _check_backoff(settings, values)
    _check_dead_letters(broker, settings)
    return settings


def effective_group_settings(broker: CoordinatorConfig, values: Mapping[str, str]) -> GroupSettings:
    """Return the settings that a group with these stored values has, each moved into the broker's present bounds.

    Never raises: a value that cannot be read, of a newer release for example, counts as not set.
    """
    return _parse(broker, values, strict=False)


def _parse(broker: CoordinatorConfig, values: Mapping[str, str], *, strict: bool) -> GroupSettings:
    parsed: dict[str, Any] = {}
    for name, text in {**broker_group_values(broker), **values}.items():
        field = _FIELDS.get(name)
        try:
            if field is None:
                raise ConfigError(f"Unknown group config name: {name}")
            value = field.metadata["setting"].parse(text)
            if name == "share.auto.offset.reset":
                _check_reset(value)
        except ConfigError:
            if strict:
                raise
            continue
        if name in values and "low" in field.metadata:
            low, high = (_broker_value(broker, field.metadata[bound]) for bound in ("low", "high"))
            if strict:
                _check_bounds(field, value, low, high)
            value = max(low, min(value, high))
        parsed[field.name] = value
    return GroupSettings(**parsed)


def _check_bounds(field: dataclasses.Field[Any], value: int, low: int, high: int) -> None:
    name = field.metadata["setting"].name
    if value < low:
        raise ConfigError(f"{name} must be greater than or equal to {field.metadata['low']}, {low}, and is {value}")
    if value > high:
        raise ConfigError(f"{name} must be less than or equal to {field.metadata['high']}, {high}, and is {value}")


def _check_reset(value: str) -> None:
    if value in ("latest", "earliest"):
        return
    if not value.startswith(_DURATION_PREFIX) or not _DURATION.fullmatch(value.removeprefix(_DURATION_PREFIX)):
        raise ConfigError(
            f"share.auto.offset.reset: {value!r} is not latest, earliest, or by_duration: and a duration of ISO 8601, "
            "such as by_duration:PT1H"
        )


def reset_duration_ms(value: str) -> int | None:
    """Return the milliseconds of `by_duration:…`, or None for `latest` and `earliest`."""
    if not value.startswith(_DURATION_PREFIX):
        return None
    match = _DURATION.fullmatch(value.removeprefix(_DURATION_PREFIX))
    assert match is not None, value
    days, hours, minutes, seconds = (float((match[each] or "0_")[:-1]) for each in (1, 3, 4, 5))
    return min(round(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days)))), INT_MAX * 1000)


def _check_backoff(settings: GroupSettings, values: Mapping[str, str]) -> None:
    if "share.redelivery.backoff.ms" not in values and "share.redelivery.backoff.max.ms" not in values:
        return
    if settings.share_redelivery_backoff_ms > settings.share_redelivery_backoff_max_ms:
        raise ConfigError(
            f"share.redelivery.backoff.ms ({settings.share_redelivery_backoff_ms}) is larger than "
            f"share.redelivery.backoff.max.ms ({settings.share_redelivery_backoff_max_ms})"
        )


def _check_dead_letters(broker: CoordinatorConfig, settings: GroupSettings) -> None:
    name, prefix = settings.errors_deadletterqueue_topic_name, broker.errors_deadletterqueue_topic_name_prefix
    if name and (name.startswith("__") or not name.startswith(prefix)):
        raise ConfigError(
            f"errors.deadletterqueue.topic.name: {name!r} must begin with {prefix!r}, the broker's "
            "errors.deadletterqueue.topic.name.prefix, and not with '__'"
        )


def _value(settings: GroupSettings, name: str) -> int:
    value = getattr(settings, _FIELDS[name].name)
    assert isinstance(value, int)
    return value


def _broker_value(broker: CoordinatorConfig, name: str) -> int:
    value = getattr(broker, _BROKER_FIELDS[name].name)
    assert isinstance(value, int)
    return value


def check_group_defaults(broker: CoordinatorConfig) -> None:
    """Raise ConfigError if a broker's default of a group setting is outside of its bounds, or the bounds cross."""
    for name, field in _FIELDS.items():
        if "low" not in field.metadata:
            continue
        broker_name = field.metadata["setting"].broker_names[0][0]
        value, low, high = (
            _broker_value(broker, each) for each in (broker_name, field.metadata["low"], field.metadata["high"])
        )
        if not low <= value <= high:
            raise ConfigError(
                f"{broker_name} is {value}, which is not between {field.metadata['low']}, {low}, and "
                f"{field.metadata['high']}, {high}: change one of them, also for {name} of groups"
            )
    for kind in ("consumer", "share"):
        session, heartbeat = f"group.{kind}.session.timeout.ms", f"group.{kind}.heartbeat.interval.ms"
        if _broker_value(broker, session) <= _broker_value(broker, heartbeat):
            raise ConfigError(f"{session} must be greater than {heartbeat}")
