"""Random histories, and then damage at any place: every durable record is still there, or the partition is offline.

Files of the log are flipped, cut short, emptied or removed. Whatever the damage: a start either keeps every batch that
was reported durable at its offset, with its bytes or as one that its checksum betrays, or it raises a `StorageFault`
that says how to go on, and has cut nothing that follows the damage. FLOWSTONE_DAMAGE_SEEDS sets how many histories.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.wire.record_batch import checksum_matches, parse_header

from .test_crashes import History

SEEDS = int(os.environ.get("FLOWSTONE_DAMAGE_SEEDS", "60"))
STEPS = 40
DAMAGES_PER_STOP = 6


class DamagedHistory(History):
    def __init__(self, world: Any, seed: int) -> None:
        super().__init__(world, seed)
        self.offline_count = 0
        self.log_start = 0

    def copy(self) -> dict[str, bytes]:
        return {name: self.world.files.read(f"{self.world.path}/{name}") for name in self.world.names()}

    def restore(self, files: dict[str, bytes]) -> None:
        self.world.files.make_directory(self.world.path)
        for name in self.world.names():
            self.world.files.remove(f"{self.world.path}/{name}")
        for name, data in files.items():
            file = self.world.files.open(f"{self.world.path}/{name}", create=True)
            file.truncate(0)
            file.write(0, [data])
            file.sync()
        self.world.files.sync_directory(self.world.path)

    def stop_and_damage(self) -> None:
        """Stop in any way; damage the files in several ways, each time as the stop left them."""
        if not self.world.names(".log"):
            return
        clean, self.log_start = self.random.random() < 0.4, self.world.log.log_start_offset
        if clean:
            self.world.stop_cleanly()
            self.flushed = len(self.batches)
        else:
            # What was not reported durable may go with damage: only what was is promised.
            self.world.log.close()
        files, directory = self.copy(), self.copy_directory()
        for _ in range(DAMAGES_PER_STOP):
            what = self.damage_any()
            fault = self.reopen_with_fault(clean=clean)
            if fault is not None:
                self.offline_count += 1
                assert "offset" in str(fault) or "position" in str(fault), fault
                self.check_nothing_was_cut(files, what)
            else:
                self.check_all_is_there(what)
            self.restore(files)
            self.restore_directory(directory)
        self.world.reopen(clean=clean)
        self.check(at_least=len(self.batches))

    def reopen_with_fault(self, *, clean: bool) -> StorageFault | None:
        try:
            self.world.reopen(clean=clean)
        except StorageFault as fault:
            return fault
        return None

    def copy_directory(self) -> dict[str, bytes]:
        return {
            name: self.world.files.read(f"/data/{name}")
            for name in self.world.files.names("/data")
            if not self.world.files.is_directory(f"/data/{name}")
        }

    def restore_directory(self, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            self.world.files.replace(f"/data/{name}", data)

    def damage_any(self) -> str:
        """Damage one log file, or several; what was done, for a message."""
        names = self.world.names(".log")
        name = self.random.choice(names)
        size = self.world.files.size(f"{self.world.path}/{name}")
        at = self.random.randrange(size) if size else 0
        match self.random.randrange(5):
            case 0 | 1 if size:
                self.world.damage(name, lambda data: data.__setitem__(at, data[at] ^ 1 << self.random.randrange(8)))
                return f"flipped {name} at {at}"
            case 2:
                self.world.damage(name, lambda data: data.__delitem__(slice(at, None)))
                return f"cut {name} at {at}"
            case 3 if self.random.random() < 0.3:
                for each in names:
                    self.world.files.remove(f"{self.world.path}/{each}")
                return "removed all"
        self.world.files.remove(f"{self.world.path}/{name}")
        return f"removed {name}"

    def check_nothing_was_cut(self, files: dict[str, bytes], what: str) -> None:
        """Every log file but those that were damaged has at least its batches; zeros at its end may be gone."""
        for name in self.world.names(".log"):
            if name in what:
                continue
            data = self.world.files.read(f"{self.world.path}/{name}")
            assert data.rstrip(b"\0") == files[name].rstrip(b"\0"), f"{what}: {name} was changed"
        missing = {name for name in files if name.endswith(".log")} - set(self.world.names(".log"))
        assert what == "removed all" or all(name in what or self.is_dropped(name) for name in missing), what

    def is_dropped(self, name: str) -> bool:
        return int(name[:20]) < self.world.stored().log_start_offset

    def check_all_is_there(self, what: str) -> None:
        log = self.world.log
        assert log.log_start_offset == self.log_start or not self.flushed, what
        promised = self.batches[: self.flushed]
        end = self.starts[self.flushed - 1] + parse_header(promised[-1]).last_offset_delta + 1 if promised else 0
        assert log.log_end_offset >= end, f"{what}: {log.log_end_offset} is left of {end}"
        for start, batch in zip(self.starts, promised, strict=False):
            if parse_header(batch).next_offset <= log.log_start_offset:
                continue
            try:
                found = self.world.read_batch(max(start, log.log_start_offset))
            except StorageFault:
                continue  # a reader is told
            header = parse_header(found)
            if header.base_offset != start:
                assert not checksum_matches(found, 0, header) or what.startswith("flipped"), f"{what}: {start}"
            else:
                assert found == batch or what.startswith("flipped"), f"{what}: {start} has other bytes"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damage_is_always_detected(make_world: Callable[[], Any], seed: int) -> None:
    history = DamagedHistory(make_world(), seed)
    steps = [
        (history.append, 40),
        (history.flush, 12),
        (history.checkpoint, 4),
        (history.delete_records, 3),
        (history.kill, 1),
        (history.lose_power, 1),
        (history.stop_and_damage, 4),
    ]
    for step in history.random.choices(*zip(*steps, strict=True), k=STEPS):  # type: ignore[arg-type]
        history.world.clock.advance(0.5)
        step()
    history.stop_and_damage()
    assert history.offline_count or not history.batches
