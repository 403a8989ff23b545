"""The metadata log in several directories: any one is enough, and none is believed that others went on without."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.cluster.image.records import TopicCreated
from flowstone.cluster.logs.file_log import FileLog
from flowstone.cluster.logs.metadata_copies import DIRECTORY, FILE_NAME, MetadataCopies
from flowstone.errors import ApiError, StartupError, StorageFault
from flowstone.ports.clock import SimulatedClock
from tests.support.broken_disks import BrokenDisks

FIRST, SECOND = "/disks/a", "/disks/b"
BOTH = (FIRST, SECOND)


class Broker:
    """Creates topics, in one life after the other."""

    def __init__(self) -> None:
        self.disks = BrokenDisks()

    def live(
        self,
        *numbers: int,
        on: Sequence[str] = BOTH,
        meanwhile: Callable[[], None] = lambda: None,
        is_incomplete: bool | None = None,
        compaction_min_bytes: int = 1 << 20,
    ) -> list[str]:
        """The topics there were at the start of a life that created these; `meanwhile` comes between the two."""

        async def run() -> list[str]:
            missing = len(on) < len(BOTH) if is_incomplete is None else is_incomplete
            copies = MetadataCopies(self.disks, on, is_incomplete=missing)
            log = FileLog(copies, SimulatedClock(), compaction_min_bytes=compaction_min_bytes)
            image = log.load()
            meanwhile()
            try:
                for number in numbers:
                    await log.append([_topic(number)])
            finally:
                await log.close()
            return sorted(image.topics)

        return asyncio.run(run())

    def stored(self, directory: str) -> bytes:
        return self.disks.read(_path(directory))


def _topic(number: int) -> TopicCreated:
    partition = PartitionImage(1, 0, 0, (1,), (1,))
    return TopicCreated(f"topic-{number}", number.to_bytes(16, "big"), (partition,), {})


def _path(directory: str) -> str:
    return f"{directory}/{DIRECTORY}/{FILE_NAME}"


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.mark.parametrize("left", BOTH)
def test_either_directory_alone_has_all_the_topics(broker: Broker, left: str) -> None:
    broker.live(1, 2)
    assert broker.live(on=[left]) == ["topic-1", "topic-2"]


def test_a_directory_that_was_added_gets_a_copy(broker: Broker) -> None:
    broker.live(1, on=[FIRST], is_incomplete=False)
    assert broker.live() == ["topic-1"]
    assert broker.stored(SECOND) == broker.stored(FIRST)


def test_a_copy_that_was_missing_is_brought_up_to_date(broker: Broker) -> None:
    broker.live(1)
    broker.live(2, on=[SECOND])
    assert broker.live() == ["topic-1", "topic-2"]
    assert broker.live(on=[FIRST]) == ["topic-1", "topic-2"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_copy_that_fails_is_left_behind_and_changes_go_on(broker: Broker, number: int) -> None:
    broker.live(1)
    broker.live(2, 3, meanwhile=lambda: broker.disks.break_disk(FIRST, number))
    broker.disks.mend(FIRST)
    assert broker.live() == ["topic-1", "topic-2", "topic-3"]


def test_when_the_last_copy_fails_changes_are_refused(broker: Broker) -> None:
    broker.live(1)
    with pytest.raises(StorageFault, match="takes no more changes"):
        broker.live(2, meanwhile=lambda: broker.disks.break_disk("/disks"))


def test_copies_that_were_both_changed_alone_are_refused(broker: Broker) -> None:
    broker.live(1)
    broker.live(2, on=[FIRST])
    broker.live(3, on=[SECOND])
    with pytest.raises(StartupError, match="both changed while the other one was missing"):
        broker.live()


def test_a_longer_copy_that_others_went_on_without_does_not_count(broker: Broker) -> None:
    broker.live(1)
    broker.live(2, meanwhile=lambda: broker.disks.break_disk(SECOND))
    broker.disks.mend(SECOND)
    stale = broker.disks.open(_path(SECOND))
    stale.write(stale.size(), [broker.stored(FIRST)])  # whatever it holds
    assert broker.live() == ["topic-1", "topic-2"]


def test_a_damaged_copy_is_made_anew_from_the_good_one(broker: Broker) -> None:
    broker.live(1, 2)
    broker.disks.open(_path(FIRST)).write(30, [b"????????"])
    assert broker.live() == ["topic-1", "topic-2"]
    assert broker.stored(FIRST) == broker.stored(SECOND)


def test_without_any_metadata_and_with_a_directory_missing_the_broker_does_not_begin_anew(broker: Broker) -> None:
    with pytest.raises(StartupError, match="a data directory is missing"):
        broker.live(on=[SECOND])


def test_a_change_that_one_full_disk_cannot_take_is_refused_by_all(broker: Broker) -> None:
    broker.live(1)
    before = broker.stored(FIRST)
    with pytest.raises(ApiError, match="disk is full"):
        broker.live(2, meanwhile=lambda: broker.disks.break_disk(SECOND, errno.ENOSPC))
    broker.disks.mend(SECOND)
    assert broker.stored(FIRST) == broker.stored(SECOND) == before


def test_an_overgrown_log_is_replaced_in_every_copy(broker: Broker) -> None:
    broker.live(*range(1, 9), compaction_min_bytes=500)
    assert broker.stored(FIRST) == broker.stored(SECOND)
    assert len(broker.live()) == 8
