"""Decides requests to change settings of topics, brokers and groups: pure, with Kafka's errors.

A change is checked as a whole: the values a resource would have afterwards must all be valid, or none is taken. Kafka
answers a bad topic setting with INVALID_CONFIG and a bad broker setting with INVALID_REQUEST (KAFKA-13609).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from flowstone.cluster.decisions.configs import DYNAMIC_BROKER_SETTINGS, broker_config, thread_count
from flowstone.cluster.decisions.topic_names import check_topic_name
from flowstone.cluster.image.cluster_image import CLUSTER_DEFAULT, ClusterImage
from flowstone.cluster.image.records import (
    BrokerConfigChanged,
    ClientMetricsChanged,
    GroupConfigChanged,
    MetadataRecord,
    TopicConfigChanged,
)
from flowstone.cluster.image.records.config_values import value_changes
from flowstone.config import (
    GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Kind,
    Setting,
    known_broker_names,
    nearest,
    parse_group_settings,
    parse_topic_config,
    stored_setting,
)
from flowstone.config.client_metrics import CLIENT_METRICS_SETTINGS, parse_client_metrics
from flowstone.errors import ApiError, ConfigError, ErrorCode

# A topic's value is stored as it was written, for each of a hundred thousand topics; spaces around a number count
# towards this limit.
SETTING_VALUE_LENGTH_MAX = 1024
# The numbers of threads that can be altered: by a factor of two at a time, as in Kafka.
THREAD_COUNTS = frozenset({"num.flush.threads", "num.reader.threads"})
# Groups with settings: such a group need not exist, so that nothing else limits their number.
GROUPS_WITH_SETTINGS_MAX = 10_000
# Subscriptions to clients' metrics, each of which is compared with a client that asks.
CLIENT_METRICS_MAX = 100


class ResourceType(IntEnum):
    """The kinds of resources that settings belong to, with the protocol's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    resource_type: int
    resource_name: str
    operations: Sequence[ConfigOperation]
    # The older request replaces all of a resource's values by the given ones.
    replaces_all: bool = False


@dataclass(frozen=True, slots=True)
class AlterationResult:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


Resource = tuple[int, str]


def find_repeated(alterations: Iterable[ConfigAlteration]) -> frozenset[Resource]:
    """Return the resources, by type and name, that are named more than once."""
    times = Counter((each.resource_type, each.resource_name) for each in alterations)
    return frozenset(resource for resource, count in times.items() if count > 1)


def alter_configs(
    image: ClusterImage,
    alterations: Sequence[ConfigAlteration],
    config: BrokerConfig,
    repeated: Container[Resource] | None = None,
) -> tuple[list[MetadataRecord], list[AlterationResult]]:
    """Return the records, and one result per alteration, in order.

    `config` contains the settings with which the broker was started.
    `repeated` are the resources that the request, of which these alterations are a part, names more than once.
    """
    if repeated is None:
        repeated = find_repeated(alterations)
    records: list[MetadataRecord] = []
    results: list[AlterationResult] = []
    for each in alterations:
        try:
            if (each.resource_type, each.resource_name) in repeated:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            _check_operations(each.operations)
            if each.resource_type == ResourceType.TOPIC:
                records += _alter_topic(image, each)
            elif each.resource_type == ResourceType.BROKER:
                records += _alter_broker(image, each, config)
            elif each.resource_type == ResourceType.CLIENT_METRICS:
                records += _alter_client_metrics(image, each)
            elif each.resource_type == ResourceType.GROUP:
                records += _alter_group(image, each, config)
            else:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {each.resource_type}")
        except ApiError as error:
            results.append(AlterationResult(error.code, error.message))
        else:
            results.append(AlterationResult())
    return records, results


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG unless a topic can have these values."""
    _check_lengths(configs)
    try:
        parsed = parse_topic_config({}, configs)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
        message = (
            f"min.compaction.lag.ms ({parsed.min_compaction_lag_ms}) is larger than "
            f"max.compaction.lag.ms ({parsed.max_compaction_lag_ms})"
        )
        raise ApiError(ErrorCode.INVALID_CONFIG, message)


def _check_lengths(configs: Mapping[str, str]) -> None:
    for name, value in configs.items():
        if len(value) > SETTING_VALUE_LENGTH_MAX:
            message = f"{name}: a value of {len(value)} characters; the longest that is taken has "
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{message}{SETTING_VALUE_LENGTH_MAX}")


def check_broker_name(name: str, node_id: int) -> None:
    """Raise INVALID_REQUEST unless the resource is this broker; the caller handles the name of all brokers together."""
    try:
        given = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if given != node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {node_id}, but received {name}")


def _check_operations(operations: Sequence[ConfigOperation]) -> None:
    if len({each.name for each in operations}) < len(operations):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [each.name for each in operations if each.value is None and each.operation != Operation.DELETE]
    if missing:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")
    for each in operations:
        if each.operation not in Operation.__members__.values():
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {each.operation}")


def _alter_topic(image: ClusterImage, alteration: ConfigAlteration) -> list[MetadataRecord]:
    name = alteration.resource_name
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    topic = image.topics.get(name)
    current: Mapping[str, str] = {} if topic is None else topic.configs
    after = _values_after(current, alteration, TOPIC_SETTINGS)
    check_topic_configs(after)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    changes = value_changes(current, after)
    return [TopicConfigChanged(topic.topic_id, changes)] if changes else []


def _alter_broker(image: ClusterImage, alteration: ConfigAlteration, config: BrokerConfig) -> list[MetadataRecord]:
    name = alteration.resource_name
    if name != CLUSTER_DEFAULT:
        check_broker_name(name, config.node_id)
        name = str(config.node_id)
    current = image.broker_configs.get(name, {})
    after = _values_after(current, alteration, DYNAMIC_BROKER_SETTINGS)
    changes = value_changes(current, after)
    for changed, value in changes.items():
        if value is not None:
            _check_broker_setting(changed, value, name)
    altered = replace(image, broker_configs={**image.broker_configs, name: after})
    for changed in changes.keys() & THREAD_COUNTS:
        _check_thread_count(changed, thread_count(image, config, changed), thread_count(altered, config, changed))
    return [BrokerConfigChanged(name, changes)] if changes else []


def _alter_group(image: ClusterImage, alteration: ConfigAlteration, config: BrokerConfig) -> list[MetadataRecord]:
    group_id = alteration.resource_name
    if not group_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    current = image.group_configs.get(group_id, {})
    after = _values_after(current, alteration, GROUP_SETTINGS)
    _check_lengths(after)
    try:
        parse_group_settings(broker_config(image, config), after)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    changes = value_changes(current, after)
    if changes and not current and len(image.group_configs) >= GROUPS_WITH_SETTINGS_MAX:
        message = f"{GROUPS_WITH_SETTINGS_MAX} groups have settings, the most there may be: delete those of another"
        raise ApiError(ErrorCode.POLICY_VIOLATION, message)
    return [GroupConfigChanged(group_id, changes)] if changes else []


def _alter_client_metrics(image: ClusterImage, alteration: ConfigAlteration) -> list[MetadataRecord]:
    name = alteration.resource_name
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default client metrics resources are not allowed.")
    current = image.client_metrics.get(name, {})
    after = _values_after(current, alteration, CLIENT_METRICS_SETTINGS)
    _check_lengths(after)
    try:
        parse_client_metrics(after)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    changes = value_changes(current, after)
    if changes and not current and len(image.client_metrics) >= CLIENT_METRICS_MAX:
        message = f"there are {CLIENT_METRICS_MAX} subscriptions, the most there may be: delete another"
        raise ApiError(ErrorCode.POLICY_VIOLATION, message)
    return [ClientMetricsChanged(name, changes)] if changes else []


def _check_broker_setting(name: str, value: str, broker: str) -> None:
    setting = DYNAMIC_BROKER_SETTINGS.get(name) or stored_setting(name)
    if setting is None or setting.read_only:
        known = known_broker_names()
        if setting is not None or name in known:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {name}")
        raise ApiError(ErrorCode.INVALID_CONFIG, f"unknown setting {name}{nearest(name, known)}")
    if broker == CLUSTER_DEFAULT and setting.per_broker:
        message = f"Cannot update these configs at default cluster level, broker id must be specified: {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, message)
    try:
        setting.parse(value)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _check_thread_count(name: str, before: int, after: int) -> None:
    """Raise INVALID_REQUEST if a number of threads would fall below half of the current one or exceed its double.

    This is the rule of Kafka's DynamicThreadPool. It compares the values in effect on the broker that decides, even if
    one is removed; other brokers follow its decision.
    """
    failed = f"Dynamic thread count update validation failed for {name}={after}, value should"
    if after < before // 2:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{failed} be at least half the current value {before}")
    if after > before * 2:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{failed} not be greater than double the current value {before}")


def _values_after(
    current: Mapping[str, str], alteration: ConfigAlteration, settings: Mapping[str, Setting]
) -> dict[str, str]:
    after = {} if alteration.replaces_all else dict(current)
    for each in alteration.operations:
        if each.operation == Operation.DELETE:
            after.pop(each.name, None)
        elif each.operation == Operation.SET:
            after[each.name] = each.value or ""
        else:
            after[each.name] = _list_after(after.get(each.name), each, settings.get(each.name))
    return after


def _list_after(current: str | None, operation: ConfigOperation, setting: Setting | None) -> str:
    kind = Operation(operation.operation)
    if setting is None or setting.kind is not Kind.LIST:
        message = f"Can't {kind.name} to key {operation.name} because its type is not LIST."
        raise ApiError(ErrorCode.INVALID_CONFIG, message)
    text = setting.format(setting.default) if current is None else current
    parts = [part for part in text.split(",") if part]
    values = dict.fromkeys((operation.value or "").split(","))
    if kind is Operation.APPEND:
        present = set(parts)
        return ",".join([*parts, *(value for value in values if value not in present)])
    return ",".join(part for part in parts if part not in values)
