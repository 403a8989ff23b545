"""Error responses made by the schema: every API that is served, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.requests.error_responses import ERROR_FIELDS, error_response
from flowstone.errors import ErrorCode
from flowstone.wire import messages
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_decoder, response_encoder
from flowstone.wire.message import Message
from flowstone.wire.schema import Struct, load_api

ERROR = ErrorCode.POLICY_VIOLATION
SERVED = [
    (APIS[key].name, version)
    for key, endpoint in ENDPOINTS.items()
    for version in range(endpoint.min_version, endpoint.max_version + 1)
]


def example(struct: Struct, version: int) -> Message:
    """A request with two entries in every array, each with a name and a number of its own."""
    message: Any = getattr(messages, struct.name)()
    for field in struct.fields:
        if version not in field.versions:
            continue
        if field.is_array and field.struct is not None:
            setattr(message, field.name, [example(field.struct, version), example(field.struct, version)])
        elif field.is_array:
            setattr(message, field.name, ["first", "second"] if field.type == "string" else [7, 8])
        elif field.type == "string":
            setattr(message, field.name, f"a {field.name}")
        elif field.type in ("int8", "int16", "int32", "int64"):
            setattr(message, field.name, 7)
    return message


def errors_in(message: Any) -> list[int]:
    found = []
    for name in message.__slots__:
        value = getattr(message, name)
        if name in ERROR_FIELDS and value:
            found.append(value)
        for each in value if isinstance(value, list) else ():
            found += errors_in(each) if isinstance(each, Message) else []
    return found


@pytest.mark.parametrize(("api_name", "version"), SERVED)
def test_every_version_of_every_api_can_fail(api_name: str, version: int) -> None:
    schema = load_api(api_name)
    request = example(schema.request, version)
    response = error_response(api_name, version, request, ERROR, "why")
    assert response is not None
    data = b"".join(map(bytes, response_encoder(schema.key, version)(response)))  # type: ignore[arg-type]
    decoded = response_decoder(schema.key, version)(memoryview(data), 0)
    assert errors_in(decoded)
    assert set(errors_in(decoded)) == {ERROR}


def test_each_partition_of_a_produce_is_refused() -> None:
    partitions = [messages.ProduceRequestPartition(index=index) for index in (4, 5)]
    request = messages.ProduceRequest(topic_data=[messages.ProduceRequestTopic(name="t", partition_data=partitions)])
    response: Any = error_response("Produce", 9, request, ERROR, "why")
    (topic,) = response.responses
    assert topic.name == "t"
    assert [(each.index, each.error_code, each.base_offset) for each in topic.partition_responses] == [
        (4, ERROR, -1),
        (5, ERROR, -1),
    ]
    assert {each.error_message for each in topic.partition_responses} == {"why"}


def test_a_fetch_fails_in_its_partitions_and_as_a_whole_only_if_it_names_none() -> None:
    partition = messages.FetchRequestPartition(partition=3, fetch_offset=9)
    request = messages.FetchRequest(
        topics=[messages.FetchRequestTopic(topic_id=bytes(range(16)), partitions=[partition])]
    )
    response: Any = error_response("Fetch", 16, request, ERROR, "why")
    (topic,) = response.responses
    (failed,) = topic.partitions
    assert (response.error_code, topic.topic_id) == (0, bytes(range(16)))
    assert (failed.partition_index, failed.error_code, failed.high_watermark, failed.records) == (3, ERROR, -1, b"")
    of_a_session: Any = error_response("Fetch", 16, messages.FetchRequest(session_id=5), ERROR, "why")
    assert (of_a_session.error_code, list(of_a_session.responses)) == (ERROR, [])


def test_entries_asked_for_by_name_alone_are_known_by_it() -> None:
    deleted: Any = error_response("DeleteTopics", 5, messages.DeleteTopicsRequest(topic_names=["a", "b"]), ERROR, "why")
    assert [topic.name for topic in deleted.responses] == ["a", "b"]
    found: Any = error_response(
        "FindCoordinator", 4, messages.FindCoordinatorRequest(coordinator_keys=["g"]), ERROR, "why"
    )
    assert [(each.key, each.error_code) for each in found.coordinators] == [("g", ERROR)]


def test_a_groups_error_belongs_to_the_group_not_to_its_partitions() -> None:
    group = messages.OffsetFetchRequestGroup(group_id="g", topics=None)
    response: Any = error_response("OffsetFetch", 8, messages.OffsetFetchRequest(groups=[group]), ERROR, "why")
    (answered,) = response.groups
    assert (answered.group_id, answered.error_code) == ("g", ERROR)


def test_a_request_that_names_nothing_leaves_no_space_for_an_error() -> None:
    assert error_response("CreateTopics", 7, messages.CreateTopicsRequest(), ERROR, "why") is None
