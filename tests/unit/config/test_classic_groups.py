"""The settings of classic groups and of committed offsets."""

from __future__ import annotations

import pytest

from flowstone.config import parse_broker_config
from flowstone.errors import ConfigError


def test_the_settings_of_groups_are_settings_of_the_broker() -> None:
    config, _ = parse_broker_config({"group.max.size": "7", "offsets.topic.num.partitions": "3"})
    assert (config.group_max_size, config.offsets_topic_num_partitions) == (7, 3)


@pytest.mark.parametrize("name", ["group.min.session.timeout.ms", "offsets.retention.minutes"])
def test_a_value_below_the_minimum_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: 0 is below the minimum, 1"):
        parse_broker_config({name: "0"})
