"""Where a partition goes whose directory a client has chosen before the broker has it, and how many it may choose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.broker.disks.directory_moves import move_to_directory
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.directories import replica_moves
from flowstone.replication.served_partitions import Partitions
from tests.support.managed_logs import CONFIG, FIRST, SECOND, TOPIC_ID, Broker, run


def asked(broker: Broker, path: str, topic_partition: Any = FIRST) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        move_to_directory(broker.logs, Partitions(), topic_partition, path)
    return refused.value.code


def test_a_partition_that_comes_later_is_created_in_the_chosen_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "WANTED_MAX", 1)
    broker = Broker()
    broker.config = BrokerConfig(log_dirs="/a,/b,/c")

    async def body() -> None:
        logs = broker.open()
        for path in ("/b", "/c"):  # the last one counts
            assert asked(broker, path) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert asked(broker, "/b", SECOND) is ErrorCode.KAFKA_STORAGE_ERROR
        log = logs.get_or_create(FIRST, TOPIC_ID, CONFIG)
        assert logs.directory_of(log).path == "/c"
        logs.directories[1].fault = replica_moves.StorageFault("broken")
        assert asked(broker, "/b") is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.sleep(0)
        logs.abort()

    run(body)
