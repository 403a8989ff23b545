"""The text of `/metrics`: the counters in `broker_metrics`, and values read from the broker's state at each scrape.

Runs on the loop and yields between its parts, so that a scrape of many partitions does not delay requests. The number
of partitions with labels of their own is limited: the sizes of the others are summed up, their offsets are left out.
docs/monitoring.md has the table of all families; a test compares the two.
"""

from __future__ import annotations

import asyncio
import platform
from itertools import islice

import flowstone
from flowstone import kernel
from flowstone.broker.disks.disk_space import DiskSpace
from flowstone.broker.lag.group_survey import GroupSurvey
from flowstone.broker.lag.late_transactions import LateTransactions
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.metrics.client_metrics import write_client_metrics
from flowstone.broker.metrics.exposition import Exposition, label_text
from flowstone.broker.metrics.group_metrics import write_groups
from flowstone.broker.metrics.replication_metrics import ReplicationMetrics
from flowstone.broker.metrics.share_metrics import write_sharing
from flowstone.broker.metrics.stable_offset_metrics import write_stable_offsets
from flowstone.broker.metrics.transaction_metrics import write_transactions
from flowstone.broker.network.server import Server
from flowstone.broker.requests.context import Services
from flowstone.errors import ErrorCode
from flowstone.ports.process import process_facts

PARTITION_LABELS_MAX = 1000
# Partitions examined in one time slice: about 0.3 ms.
SLICE_PARTITIONS = 100
OTHER = "_other"


class Scrape:
    def __init__(
        self,
        services: Services,
        server: Server,
        survey: GroupSurvey,
        disks: DiskSpace,
        late_transactions: LateTransactions,
    ) -> None:
        self._services, self._server, self._survey, self._disks = services, server, survey, disks
        self._late_transactions = late_transactions
        self._replication = ReplicationMetrics(services)
        self._under_way: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return the page. Concurrent calls share one text: many cost no more than one."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._write())
        return await asyncio.shield(self._under_way)

    async def _write(self) -> bytes:
        page = Exposition()
        self._write_process(page)
        self._write_requests(page)
        self._write_connections(page)
        self._write_waiting(page)
        self._write_log(page)
        await yield_to_loop()
        self._write_topics(page)
        await self._write_partitions(page)
        await write_stable_offsets(page, self._services.partitions)
        write_sharing(page, self._services.sharing)
        write_transactions(
            page, self._services.transactions, self._late_transactions.count, self._services.clock.time_ms()
        )
        await self._replication.write(page)
        await write_groups(page, self._survey.latest)
        write_client_metrics(page, self._services.telemetry)
        return page.text()

    def _write_process(self, page: Exposition) -> None:
        labels = label_text(version=flowstone.__version__, kernel=kernel.KERNEL, python=platform.python_version())
        page.gauge("flowstone_build_info", "Always 1; the labels name the version.", {labels: 1})
        lag_seconds = self._services.metrics.loop_lag_seconds
        page.histogram("flowstone_loop_lag_seconds", "How late the event loop ran a timer, once a second.", lag_seconds)
        facts = process_facts()
        page.counter("process_cpu_seconds_total", "Processor time used by all threads.", facts.cpu_seconds)
        page.gauge("process_max_fds", "File descriptors the process may have.", facts.descriptors_max)
        if facts.open_descriptors is not None:
            page.gauge("process_open_fds", "File descriptors in use.", facts.open_descriptors)
        if facts.resident_bytes is not None:
            page.gauge("process_resident_memory_bytes", "Memory in use.", facts.resident_bytes)

    def _write_requests(self, page: Exposition) -> None:
        requests = self._services.metrics.requests
        apis = [(label_text(api=name), each) for name, each in requests.items()]
        received = {labels: each.received for labels, each in apis}
        page.counter("flowstone_requests_total", "Requests received.", received)
        request_bytes = {labels: each.request_bytes for labels, each in apis}
        page.counter("flowstone_request_bytes_total", "Bytes of requests received.", request_bytes)
        response_bytes = {labels: each.response_bytes for labels, each in apis}
        page.counter("flowstone_response_bytes_total", "Bytes of responses made.", response_bytes)
        loop_seconds = {labels: each.loop_seconds for labels, each in apis}
        page.counter("flowstone_request_loop_seconds_total", "Time that requests held the event loop.", loop_seconds)
        slow = {labels: each.slow for labels, each in apis}
        page.counter(
            "flowstone_slow_requests_total",
            "Requests that occupied the event loop for longer than slow.request.ms.",
            slow,
        )
        response_seconds = {labels: each.response_seconds for labels, each in apis}
        page.histogram(
            "flowstone_response_seconds",
            "From a request's arrival until its response is made, waiting for data or the disk included.",
            response_seconds,
        )
        errors = {
            label_text(api=name, error=ErrorCode(code).name): count
            for name, each in requests.items()
            for code, count in each.errors.items()
        }
        page.counter("flowstone_errors_total", "Errors in responses; each partition or topic with one counts.", errors)

    def _write_connections(self, page: Exposition) -> None:
        server = self._server
        page.gauge("flowstone_connections", "Open connections of clients.", server.connection_count)
        page.counter("flowstone_connections_accepted_total", "Connections that clients made.", server.accepted_count)
        page.counter(
            "flowstone_connections_refused_total",
            "Connections closed at once because max.connections or max.connections.per.ip was reached.",
            server.refused_count,
        )
        page.counter(
            "flowstone_connections_dropped_total",
            "Connections closed by the broker because of errors or timeouts; the log has the reasons.",
            server.dropped_count,
        )
        page.gauge(
            "flowstone_request_buffer_bytes",
            "Memory held for requests still arriving; queued.max.request.bytes is the limit.",
            server.buffers.taken_bytes,
        )

    def _write_waiting(self, page: Exposition) -> None:
        services = self._services
        parked = {
            label_text(api="Fetch"): len(services.waiting.fetches),
            label_text(api="Produce"): len(services.waiting.produces),
        }
        page.gauge("flowstone_parked_requests", "Requests that wait for data or for the disk.", parked)
        page.gauge("flowstone_fetch_sessions", "Incremental fetch sessions stored.", len(services.fetch_sessions))
        memory = services.groups.memory
        page.gauge("flowstone_group_memory_bytes", "Memory that all groups take together.", memory.used_bytes)
        page.counter(
            "flowstone_group_memory_refusals_total",
            "Joins, assignments and commits refused because of group.memory.max.bytes.",
            memory.refused_count,
        )
        page.counter(
            "flowstone_cold_reads_total",
            "Reads by a worker of what was not in the page cache.",
            services.workers.read_count,
        )

    def _write_log(self, page: Exposition) -> None:
        logs = self._services.logs
        directories = {label_text(directory=each.path): each for each in logs.directories}
        failed = {labels: int(each.fault is not None) for labels, each in directories.items()}
        failed |= {label_text(directory=path): 1 for path in logs.unusable}
        page.gauge("flowstone_log_directory_failed", "1 once a data directory has failed for good.", failed)
        self._write_free_space(page)
        self._write_scrubber(page)
        self._write_cleaners(page)
        flush_seconds = {labels: each.flusher.flush_seconds for labels, each in directories.items()}
        page.histogram("flowstone_flush_seconds", "Flushes, until the loop is notified.", flush_seconds)

    def _write_free_space(self, page: Exposition) -> None:
        spaces = {
            label_text(directory=each.directory.path): each
            for each in self._disks.directories
            if each.directory.fault is None
        }
        usable_bytes = {labels: each.usable_bytes for labels, each in spaces.items()}
        page.gauge("flowstone_log_directory_free_bytes", "Free bytes of its file system.", usable_bytes)
        total_bytes = {labels: each.total_bytes for labels, each in spaces.items()}
        page.gauge("flowstone_log_directory_total_bytes", "Size of its file system.", total_bytes)
        left = {labels: each.seconds_left for labels, each in spaces.items()}
        page.gauge(
            "flowstone_log_directory_seconds_left",
            "Time until the directory is full if its logs continue to grow.",
            left,
        )
        low = {labels: int(each.is_low) for labels, each in spaces.items()}
        page.gauge(
            "flowstone_log_directory_low",
            "1 while the directory is full soon, or nearly full.",
            low,
        )
        refusing = {labels: int(each.is_refusing) for labels, each in spaces.items()}
        page.gauge("flowstone_log_directory_refusing", "1 while clients' new records are refused.", refusing)

    def _write_scrubber(self, page: Exposition) -> None:
        scrubber = self._services.logs.scrubber
        page.counter(
            "flowstone_scrubbed_bytes_total", "Bytes of old segments read to find damage.", scrubber.checked_bytes
        )
        page.gauge("flowstone_scrub_damaged_segments", "Segments found damaged by scrubbing.", len(scrubber.damaged))

    def _write_cleaners(self, page: Exposition) -> None:
        cleaners = {label_text(directory=each.path): each.cleaner for each in self._services.logs.directories}
        stats = {labels: cleaner.stats for labels, cleaner in cleaners.items()}
        run_seconds = {labels: each.run_seconds for labels, each in stats.items()}
        page.histogram("flowstone_cleaner_run_seconds", "Compactions of a log, from beginning to end.", run_seconds)
        failed = {labels: each.failed_runs for labels, each in stats.items()}
        page.counter(
            "flowstone_cleaner_failed_runs_total", "Compactions that failed and left the log as it was.", failed
        )
        read_bytes = {labels: each.read_bytes for labels, each in stats.items()}
        page.counter("flowstone_cleaner_read_bytes_total", "Bytes of segments read to compact them.", read_bytes)
        written_bytes = {labels: each.written_bytes for labels, each in stats.items()}
        page.counter("flowstone_cleaner_written_bytes_total", "Bytes of compacted segments written.", written_bytes)
        dirty = {labels: each.dirty_ratio_max for labels, each in stats.items()}
        page.gauge("flowstone_cleaner_dirty_ratio_max", "The largest dirty part of a log at the last check.", dirty)
        looked = {labels: each.last_look_ms / 1000 for labels, each in stats.items()}
        page.gauge("flowstone_cleaner_last_look_timestamp_seconds", "When the cleaner last checked the logs.", looked)
        errors = {labels: each.last_error_ms / 1000 for labels, each in stats.items()}
        page.gauge("flowstone_cleaner_last_error_timestamp_seconds", "When a compaction last failed.", errors)
        unfit = {labels: len(cleaner.unfit) for labels, cleaner in cleaners.items()}
        page.gauge("flowstone_cleaner_unfit_partitions", "Logs not compacted because they are damaged.", unfit)

    def _write_topics(self, page: Exposition) -> None:
        metrics = self._services.metrics
        metrics.forget_topics_but(self._services.metadata.image.topics)
        counted = {**metrics.topics, OTHER: metrics.other_topics}
        topics = [(label_text(topic=name), each) for name, each in counted.items()]
        batches = {labels: each.produced_batches for labels, each in topics}
        page.counter("flowstone_produced_batches_total", "Record batches appended.", batches)
        records = {labels: each.produced_records for labels, each in topics}
        page.counter("flowstone_produced_records_total", "Records appended.", records)
        produced_bytes = {labels: each.produced_bytes for labels, each in topics}
        page.counter("flowstone_produced_bytes_total", "Bytes of record batches appended.", produced_bytes)
        fetched_bytes = {labels: each.fetched_bytes for labels, each in topics}
        page.counter("flowstone_fetched_bytes_total", "Bytes of record batches in answers to fetches.", fetched_bytes)

    async def _write_partitions(self, page: Exposition) -> None:
        starts: dict[str, float] = {}
        ends: dict[str, float] = {}
        high_watermarks: dict[str, float] = {}
        sizes_bytes: dict[str, float] = {}
        partitions = list(self._services.partitions)  # a copy: partitions may be closed between two slices
        failed = other_bytes = 0
        left = iter(partitions)
        while slice_ := list(islice(left, SLICE_PARTITIONS)):
            for partition in slice_:
                log = partition.log
                failed += partition.fault is not None
                if len(starts) == PARTITION_LABELS_MAX:
                    other_bytes += log.size_bytes
                    continue
                topic, index = partition.topic_partition
                labels = f'{{topic="{topic}",partition="{index}"}}'  # a topic's name has no characters to escape
                starts[labels] = log.log_start_offset
                ends[labels] = log.log_end_offset
                high_watermarks[labels] = partition.high_watermark.offset
                sizes_bytes[labels] = log.size_bytes
            await yield_to_loop()
        sizes_bytes[label_text(topic=OTHER, partition="")] = other_bytes
        unopened = len(self._services.logs.offline)
        states = {
            label_text(state="online"): len(partitions) - failed,
            label_text(state="offline"): failed + unopened,
        }
        page.gauge("flowstone_partitions", "Partitions of this broker.", states)
        for name, help_text, samples in (
            ("flowstone_partition_log_start_offset", "The first offset of the log.", starts),
            ("flowstone_partition_log_end_offset", "The offset that the next record gets.", ends),
            ("flowstone_partition_high_watermark", "The end of what consumers may see.", high_watermarks),
            ("flowstone_partition_size_bytes", "Bytes of the log's segments.", sizes_bytes),
        ):
            page.gauge(name, help_text, samples)
            await yield_to_loop()
