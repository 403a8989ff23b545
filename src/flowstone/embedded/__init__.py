"""A broker for tests, notebooks and small programs: in a thread of this process, or in a process of its own.

The broker is the same as `flowstone up` runs, on a real socket; only the embedding process's own affairs (signals,
logging, garbage collection) are left alone.

    with flowstone.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

`Cluster` is loaded when first asked for: a test that needs one broker starts sooner without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowstone.broker.lag.group_status import GroupMember, GroupStatus, PartitionLag
from flowstone.embedded.broker import Broker, BrokerClock
from flowstone.embedded.faults import Fault
from flowstone.embedded.host import NotInProcessMode, NotServing, Record
from flowstone.embedded.transaction_reader import TransactionStatus

if TYPE_CHECKING:
    from flowstone.embedded.cluster import Cluster

__all__ = [
    "Broker",
    "BrokerClock",
    "Cluster",
    "Fault",
    "GroupMember",
    "GroupStatus",
    "NotInProcessMode",
    "NotServing",
    "PartitionLag",
    "Record",
    "TransactionStatus",
]


def __dir__() -> list[str]:
    """Return the public names, whether or not they have been loaded yet."""
    return sorted(__all__)


if not TYPE_CHECKING:  # otherwise a type checker accepts every name as one of the module's

    def __getattr__(name: str) -> Any:
        if name == "Cluster":
            from flowstone.embedded.cluster import Cluster

            return Cluster
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
