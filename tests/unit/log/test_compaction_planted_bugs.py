"""Six mistakes that compaction must not make, made on purpose: the histories find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flowstone.kernel import compaction_batches
from flowstone.kernel import compaction_twin as twin
from flowstone.kernel.compaction import DELETE_HORIZON_FLAG
from flowstone.log.compaction import cleaner
from flowstone.log.compaction import filter as compaction_filter
from flowstone.log.compaction import one_log as compaction
from flowstone.log.compaction import output as compaction_output
from flowstone.log.segments.compaction_job import CompactionJob
from flowstone.log.segments.segment_swap import SegmentSwap
from tests.support.compaction_history import run_history

SEEDS = 150

Plant = Callable[[pytest.MonkeyPatch], None]


def _use_twin(patch: pytest.MonkeyPatch, offset_map: Any = twin.OffsetMap, record_filter: Any = None) -> None:
    patch.setattr(compaction, "OffsetMap", offset_map)
    patch.setattr(compaction_filter, "RecordFilter", record_filter or twin.RecordFilter)


def drop_the_last_value(patch: pytest.MonkeyPatch) -> None:
    class Bad(twin.RecordFilter):
        def _stays(self, record: Any, offset: int, keeps_tombstones: bool) -> bool:
            last = self._map.last_offset(record.key) if record.key is not None else -1
            return super()._stays(record, offset, keeps_tombstones) and offset > last

    _use_twin(patch, record_filter=Bad)


def resurrect_a_deleted_key(patch: pytest.MonkeyPatch) -> None:
    class Bad(twin.RecordFilter):
        def filter_records(self, payload: Any, batch: Any, **more: Any) -> Any:
            fields = batch._replace(attributes=batch.attributes | DELETE_HORIZON_FLAG, base_timestamp=0)
            timestamps_kept = super().filter_records(payload, batch, **more)
            without_tombstones = super().filter_records(payload, fields, **more)
            return timestamps_kept if without_tombstones.kept_count else without_tombstones

    _use_twin(patch, record_filter=Bad)


def lose_producer_state(patch: pytest.MonkeyPatch) -> None:
    def without_producers(**fields: Any) -> CompactionJob:
        return CompactionJob(**{**fields, "kept_offsets": ()})

    patch.setattr(cleaner, "CompactionJob", without_producers)


def swap_without_syncing_the_files(patch: pytest.MonkeyPatch) -> None:
    class Unsynced(compaction_output.CleanedOutput):
        def _create(self, suffix: str) -> Any:
            file = super()._create(suffix)
            file.sync = lambda: None  # type: ignore[method-assign]
            return file

    patch.setattr(compaction, "CleanedOutput", Unsynced)


def swap_without_syncing_the_names(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        pass

    patch.setattr(SegmentSwap, "_sync", nothing)


def be_off_by_one_in_the_index(patch: pytest.MonkeyPatch) -> None:
    class Bad(twin.IndexBuilder):
        def __init__(self, base_offset: int, interval_bytes: int) -> None:
            super().__init__(base_offset - 1, interval_bytes)

    patch.setattr(compaction_output, "IndexBuilder", Bad)


def use_an_offset_again(patch: pytest.MonkeyPatch) -> None:
    """A batch that has lost its last record says that it ends earlier."""
    encode = compaction_batches.Batch._encode

    def shortened(self: Any, payload: Any, attributes: int, base: int, newest: int, count: int) -> bytes:
        header = list(self._header)
        header[6] = max(count - 1, 0)
        self._header = tuple(header)
        return encode(self, payload, attributes, base, newest, count)

    patch.setattr(compaction_batches.Batch, "_encode", shortened)
    _use_twin(patch)


@pytest.mark.parametrize(
    "plant",
    [
        drop_the_last_value,
        resurrect_a_deleted_key,
        lose_producer_state,
        swap_without_syncing_the_files,
        swap_without_syncing_the_names,
        be_off_by_one_in_the_index,
        use_an_offset_again,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_planted_bug_is_found(make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)

    def is_found(seed: int) -> bool:
        try:
            run_history(make_world, seed)
        except Exception:
            return True
        return False

    assert any(is_found(seed) for seed in range(SEEDS))


def test_without_a_planted_bug_the_twin_passes_too(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_twin(monkeypatch)
    for seed in range(20):
        run_history(make_world, seed)
