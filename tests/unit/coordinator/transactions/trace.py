"""How replies, records and tasks are written down in the scenario files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowstone.coordinator.transactions import messages as m
from flowstone.coordinator.transactions.records import TransactionRecord, TransactionRemoved
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition


def said(response: Any) -> str:
    match response:
        case m.InitProducerIdResponse(ErrorCode.NONE, producer_id, epoch):
            return f"NONE {producer_id}/{epoch}"
        case m.EndTransactionResponse(ErrorCode.NONE, producer_id, epoch) if producer_id >= 0:
            return f"NONE {producer_id}/{epoch}"
        case m.VerifyPartitionsResponse(errors):
            return " ".join(f"{partition}={code.name}" for partition, code in sorted(errors.items()))
        case m.DescribedTransaction(error_code=ErrorCode.NONE):
            started = "never" if response.start_ms < 0 else str(response.start_ms % 1_000_000_000)
            about = f"{response.producer_id}/{response.producer_epoch} timeout={response.timeout_ms} start={started}"
            return " ".join(filter(None, [response.state, about, partitions_text(response.partitions)]))
        case m.ListTransactionsResponse(ErrorCode.NONE, unknown, transactions):
            listed = [f"{each.transactional_id}={each.state}:{each.producer_id}" for each in sorted(transactions)]
            return " ".join(listed or ["nothing"]) + (f" unknown={','.join(unknown)}" if unknown else "")
    name: str = response.error_code.name
    return name


def stored(record: TransactionRecord) -> str:
    if isinstance(record, TransactionRemoved):
        return f"{record.transactional_id} removed"
    line = f"{record.transactional_id} {record.state.label} {record.producer_id}/{record.producer_epoch}"
    if record.next_producer_id >= 0:
        line += f" next={record.next_producer_id}"
    if record.previous_producer_id not in (-1, record.producer_id):
        line += f" previous={record.previous_producer_id}"
    return " ".join(filter(None, [line, partitions_text(record.partitions)]))


def asked(task: m.SendMarkers) -> str:
    outcome = "commit" if task.is_commit else "abort"
    producer = f"{task.producer_id}/{task.producer_epoch} version={task.transaction_version}"
    return f"{outcome} {task.transactional_id} {producer} {partitions_text(task.partitions)}"


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    return ",".join(str(each) for each in sorted(partitions))
