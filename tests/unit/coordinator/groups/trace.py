"""How replies and records are written down in the scenario files."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups import messages as m
from flowstone.coordinator.groups.classic.consumer_protocol import assigned_partitions
from flowstone.coordinator.groups.records import (
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetCommitted,
    OffsetRemoved,
    StoredMember,
)
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.harness import written


def said(response: Any, partitions: list[str]) -> str:
    """`partitions` are those a commit named: its response tells them by their order."""
    match response:
        case m.JoinResponse():
            return _joined(response)
        case m.SyncResponse(error_code=ErrorCode.NONE):
            return f"NONE assignment={written(assigned_partitions(response.assignment))}"
        case m.LeaveResponse():
            return " ".join(each.error_code.name for each in response.members) or response.error_code.name
        case m.FetchOffsetsResponse():
            offsets = (_fetched(str(partition), each) for partition, each in response.offsets.items())
            return " ".join(offsets) or "nothing"
        case None:
            return "NONE"
        case m.CommitResponse():
            codes = zip(partitions, response.errors, strict=True)
            return " ".join(f"{partition}={code.name}" for partition, code in codes)
        case m.DeleteOffsetsResponse(error_code=ErrorCode.NONE) | m.DeleteGroupsResponse():
            return " ".join(f"{what}={code.name}" for what, code in response.errors.items())
        case m.ListGroupsResponse():
            groups = (f"{each.group_id}={each.state}:{each.protocol_type}" for each in response.groups)
            return " ".join(groups) or "nothing"
        case m.DescribedGroup(error_code=ErrorCode.NONE):
            members = " ".join(
                f"{each.member_id}={written(assigned_partitions(each.assignment))}" for each in response.members
            )
            about = f"protocol={response.protocol} rebalances={response.rebalance_count}"
            return " ".join(filter(None, [response.state, about, members]))
    name: str = response.error_code.name
    return name


def _joined(response: m.JoinResponse) -> str:
    if response.error_code is not ErrorCode.NONE:
        return " ".join(filter(None, [response.error_code.name, response.member_id]))
    line = f"NONE {response.member_id} generation={response.generation_id}"
    line += f" protocol={response.protocol_name} leader={response.leader}"
    if response.members:
        line += f" members={','.join(each.member_id for each in response.members)}"
    return line + (" skip_assignment" if response.skip_assignment else "")


def _assigned(member: m.DescribedMember | StoredMember) -> str:
    return f"{member.member_id}={written(assigned_partitions(member.assignment))}"


def _fetched(partition: str, committed: m.CommittedOffset) -> str:
    if committed.error_code is not ErrorCode.NONE:
        return f"{partition}={committed.error_code.name}"
    line = f"{partition}={committed.offset}"
    if committed.leader_epoch != -1:
        line += f" epoch={committed.leader_epoch}"
    return line + (f" metadata={committed.metadata}" if committed.metadata else "")


def stored(record: GroupRecord) -> str:
    match record:
        case GroupStored(members=()):
            return f"group {record.group_id} generation={record.generation} empty"
        case GroupStored():
            members = " ".join(
                f"{each.member_id}={written(assigned_partitions(each.assignment))}" for each in record.members
            )
            return f"group {record.group_id} generation={record.generation} leader={record.leader} {members}"
        case GroupRemoved():
            return f"group {record.group_id} removed"
        case OffsetCommitted():
            return f"offset {record.group_id} {record.topic}-{record.partition}={record.offset}"
        case OffsetRemoved():
            return f"offset {record.group_id} {record.topic}-{record.partition} removed"
