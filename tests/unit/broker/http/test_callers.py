"""Permissions on HTTP pages: each needs those of the API that corresponds to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.http.pages.page_list import PAGES
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.cluster.image.acl import DENY
from flowstone.wire import messages as m
from flowstone.wire.apis import APIS
from tests.support.acl_clients import User, app_with_rules, user
from tests.support.running_app import RunningApp, get

ANONYMOUS = "ANONYMOUS"
# The APIs that tell or change the same as a page, of whose permissions it needs some of each.
SAME_AS: dict[str, tuple[str, ...]] = {
    "/metrics": ("DescribeQuorum", "DescribeLogDirs"),
    "/groups": ("ConsumerGroupDescribe", "OffsetFetch"),
    "/disks": ("DescribeLogDirs",),
    "/events": ("DescribeQuorum", "DescribeTopicPartitions", "DescribeGroups"),
    "/explain": ("DescribeProducers", "OffsetFetch", "DescribeTransactions"),
    "/branch": ("Fetch", "CreateTopics", "OffsetCommit"),
    "/restore": ("CreateTopics",),
}
OPEN = {"/health", "/ready"}


@pytest.fixture
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("data"))
    with app_with_rules(data, default_http="127.0.0.1:0", offsets_topic_num_partitions="1") as app:
        yield app


@pytest.fixture
def admin(app: RunningApp) -> Iterator[User]:
    with user(app) as admin:
        topic = m.CreateTopicsRequestTopic(name="secret", num_partitions=1, replication_factor=1)
        admin.ask(5, m.CreateTopicsRequest(topics=[topic]))
        admin.ask(4, m.FindCoordinatorRequest(coordinator_keys=["group"]))
        for group in ("group", "other"):
            partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
            admin.ask(
                8,
                m.OffsetCommitRequest(
                    group_id=group,
                    generation_id_or_member_epoch=-1,
                    topics=[m.OffsetCommitRequestTopic(name="secret", partitions=[partition])],
                ),
            )
        yield admin


def test_no_page_but_probes_is_open_to_a_caller_without_permissions(app: RunningApp, admin: User) -> None:
    address = app.app.http_address
    assert address is not None
    for page in PAGES:
        query = "?topic=secret&partition=0&offset=0&group=group" if page.parameters else ""
        status, text = get(address, page.path + query, page.method)
        if page.path in OPEN:
            assert status == 200
        elif page.method == "POST":
            assert status == 415  # refused before its body is read; see below
        else:
            assert status == 403, page.path
            assert json.loads(text)["error"].endswith("AUTHORIZATION_FAILED")


def test_a_page_is_shown_once_its_permission_is_given(app: RunningApp, admin: User) -> None:
    assert app.get("/metrics")[0] == 403
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.CLUSTER, "kafka-cluster")
    assert app.get("/metrics")[0] == 200
    assert app.get("/explain?topic=secret&partition=0&offset=0")[0] == 403
    assert app.get("/explain?topic=absent&partition=0&offset=0") == (
        403,
        app.get("/explain?topic=secret&partition=0&offset=0")[1].replace("secret", "absent"),
    )
    admin.allow(ANONYMOUS, Op.READ, Kind.TOPIC, "secret")
    assert app.get("/explain?topic=secret&partition=0&offset=0")[0] == 404  # it has no records


def test_each_page_needs_what_the_api_needs_that_tells_the_same() -> None:
    declared = {APIS[key].name: set(endpoint.permissions) for key, endpoint in ENDPOINTS.items()}
    assert {page.path for page in PAGES} - OPEN == set(SAME_AS)
    for page in PAGES:
        of_apis = [declared[api] for api in SAME_AS.get(page.path, ())]
        assert set(page.permissions) <= set().union(*of_apis), page.path
        assert all(set(page.permissions) & each for each in of_apis), page.path


def test_a_group_is_shown_without_the_topics_that_the_caller_may_not_describe(app: RunningApp, admin: User) -> None:
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.GROUP, "group")
    for path in ("/groups", "/groups?group=group"):
        (group,) = json.loads(app.get(path)[1])["groups"]
        assert (group["group"], group["topics"], group["partitions"]) == ("group", [], [])
        assert "secret" not in app.get(path)[1]
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.TOPIC, "secret")
    (group,) = json.loads(app.get("/groups")[1])["groups"]
    assert [each["topic"] for each in group["partitions"]] == ["secret"]


def test_a_stream_of_events_ends_with_its_permission(app: RunningApp, admin: User) -> None:
    for kind, name in ((Kind.CLUSTER, "kafka-cluster"), (Kind.TOPIC, "*"), (Kind.GROUP, "*")):
        admin.allow(ANONYMOUS, Op.DESCRIBE, kind, name)
    assert app.app.http_address is not None
    connection = http.client.HTTPConnection(app.app.http_address, timeout=10)
    connection.request("GET", "/events")
    response = connection.getresponse()
    assert response.status == 200

    def create(name: str) -> None:
        topic = m.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)
        admin.ask(5, m.CreateTopicsRequest(topics=[topic]))

    create("shown")
    told = b""
    while b"shown" not in told:
        told += response.read1()
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.TOPIC, "*", DENY)
    create("hidden")
    connection.sock.settimeout(0.5)
    with suppress(TimeoutError):
        while more := response.read1():
            told += more
    assert b"hidden" not in told
    connection.close()


def test_a_list_of_groups_has_those_that_the_caller_may_describe(app: RunningApp, admin: User) -> None:
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.GROUP, "group")
    status, text = app.get("/groups")
    assert status == 200
    assert {group["group"] for group in json.loads(text)["groups"]} <= {"group"}
    assert app.get("/groups?group=group")[0] == 200
    assert app.get("/groups?group=other")[0] == 403


@pytest.mark.parametrize("path", ["/branch", "/restore"])
def test_an_action_is_refused_by_the_names_in_its_body(app: RunningApp, admin: User, path: str) -> None:
    cluster_id = app.app.services.metadata.image.cluster_id
    body = {
        "/branch": {"source": "secret", "target": "copy", "time_ms": None, "groups": False},
        "/restore": {"topic": "copy", "partitions": 1, "token": "t", "settings": {}},
    }[path]
    assert app.app.http_address is not None
    connection = http.client.HTTPConnection(app.app.http_address, timeout=10)
    connection.request(
        "POST", path, json.dumps({"cluster_id": cluster_id, **body}), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 403
    assert json.loads(response.read())["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert "copy" not in app.app.services.metadata.image.topics
    connection.close()
