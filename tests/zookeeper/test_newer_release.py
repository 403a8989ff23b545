"""A broker whose cluster's metadata holds a record of a newer release: it stops, says why, and loses nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import StartupError, StorageFault
from tests.support.broker_process import BrokerDied, BrokerProcess
from tests.support.newer_record import NewerRecord
from tests.support.zookeeper_ties import Ties, found, note

TIMEOUT_S = 15.0
SENTENCE = "unknown type 'NewerRecord': a newer release wrote it"


def test_a_log_that_reads_a_newer_record_tells_its_listeners_and_takes_no_more(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("new", "old") as (new, old):
            await new.metadata.append(found())
            await old.until_version(0)
            stopped: asyncio.Future[StorageFault] = asyncio.get_running_loop().create_future()
            old.metadata.on_failure(stopped.set_result)
            await new.metadata.append([NewerRecord()])
            assert SENTENCE in str(await asyncio.wait_for(stopped, TIMEOUT_S))
            with pytest.raises(StorageFault, match=SENTENCE):
                await old.metadata.append(note("x"))
            assert old.image.version == 0
            await new.metadata.append(note("y"))
            assert new.image.version == 2
        with pytest.raises(StartupError, match=f"{SENTENCE}.*Start the release that the other brokers run"):
            async with ties.open("old"):
                pass

    asyncio.run(body())


def test_a_running_broker_stops_with_one_error_keeps_its_data_and_does_not_start_again(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    connect = f"{zookeeper.address}/newer"
    data = tmp_path / "data"
    settings = {"zookeeper.connect": connect}
    with BrokerProcess(data, settings=settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"kept")
        assert producer.flush(TIMEOUT_S) == 0

        async def append() -> None:
            async with Ties(connect, tmp_path).open("new") as (new,):
                await new.metadata.append([NewerRecord()])

        asyncio.run(append())
        assert broker.wait_exit() == 1
        assert broker.output.count(SENTENCE) == 1
        assert "Traceback" not in broker.output
    segments = {path: path.read_bytes() for path in data.glob("orders-0/*.log")}
    assert any(b"kept" in each for each in segments.values())
    with pytest.raises(BrokerDied, match=SENTENCE), BrokerProcess(data, settings=settings):
        pass
    assert {path: path.read_bytes() for path in data.glob("orders-0/*.log")} == segments
