"""A broker for tests, notebooks and small programs: in a thread of this process, or in a process of its own.

The broker is the same as `flowstone up` runs, on a real socket; only the embedding process's own affairs (signals,
logging, garbage collection) are left alone.

    with flowstone.Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
"""

from flowstone.broker.group_status import GroupMember, GroupStatus, PartitionLag
from flowstone.embedded.broker import Broker, BrokerClock
from flowstone.embedded.cluster import Cluster
from flowstone.embedded.faults import Fault
from flowstone.embedded.host import NotInProcessMode, NotServing, Record

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
]
