"""How records of consumer groups are written down in the scenario files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowstone.coordinator.groups.consumer_records import (
    ConsumerGroupStored,
    ConsumerMemberCurrentStored,
    ConsumerMemberStored,
    ConsumerMemberTargetStored,
    ConsumerRecordRemoved,
    ConsumerRegexStored,
    ConsumerTargetStored,
)
from flowstone.coordinator.groups.records import GroupRecord
from tests.unit.coordinator.groups.trace import stored as classic_stored


def stored(record: GroupRecord, told: Callable[[Any], str]) -> str:
    match record:
        case ConsumerMemberStored():
            of = f"topics={','.join(record.subscribed_topics)}"
            of += f" regex={record.regex}" if record.regex else ""
            of += f" instance={record.instance_id}" if record.instance_id else ""
            return f"member {record.member_id} {of}" + (" classic" if record.classic else "")
        case ConsumerGroupStored():
            return f"epoch {record.epoch}"
        case ConsumerTargetStored():
            return f"assignment epoch {record.assignment_epoch}"
        case ConsumerMemberTargetStored():
            return f"target {record.member_id} {told(record.partitions)}"
        case ConsumerMemberCurrentStored():
            line = f"current {record.member_id} epoch={record.member_epoch} {record.state.name} {told(record.assigned)}"
            return line + (f" revoking={told(record.revoking)}" if record.revoking else "")
        case ConsumerRegexStored():
            return f"regex {record.regex} {','.join(record.topics)}"
        case ConsumerRecordRemoved():
            return f"{record.key.name} {record.name} removed".replace("  ", " ")
    return classic_stored(record)
