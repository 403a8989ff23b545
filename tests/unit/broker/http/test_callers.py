"""Permissions on HTTP pages: each needs those of the API that corresponds to it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from flowstone.broker.http.pages.page_list import PAGES
from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.wire import messages as m
from tests.support.acl_clients import User, app_with_rules, user
from tests.support.running_app import RunningApp, get

ANONYMOUS = "ANONYMOUS"
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


def test_a_list_of_groups_has_those_that_the_caller_may_describe(app: RunningApp, admin: User) -> None:
    admin.allow(ANONYMOUS, Op.DESCRIBE, Kind.GROUP, "group")
    status, text = app.get("/groups")
    assert status == 200
    assert {group["group"] for group in json.loads(text)["groups"]} <= {"group"}
    assert app.get("/groups?group=group")[0] == 200
    assert app.get("/groups?group=other")[0] == 403


@pytest.mark.parametrize("path", ["/branch", "/restore"])
def test_an_action_is_refused_by_the_names_in_its_body(app: RunningApp, admin: User, path: str) -> None:
    import http.client

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
