"""The audit log: its lines, limits and files, of a broker that clients ask."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.requests import audit as audit_module
from flowstone.broker.requests.audit import AuditFiles
from flowstone.cluster.decisions.acl_operations import AclOperation, ResourceType
from flowstone.cluster.image.acl import ANY_OPERATION, ANY_PATTERN, ANY_PERMISSION, ANY_RESOURCE
from flowstone.ports.system_files import SystemFiles
from flowstone.wire import messages as m
from tests.support.acl_clients import app_with_rules, user
from tests.support.running_app import RunningApp

WAIT_S = 30.0


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(path: Path, count: int) -> list[dict[str, Any]]:
    ends = time.monotonic() + WAIT_S
    while len(found := lines(path)) < count and time.monotonic() < ends:
        time.sleep(0.01)
    assert len(found) >= count
    return found


def test_denials_and_changes_of_rules_are_logged_with_who_did_what(tmp_path: Path) -> None:
    path = tmp_path / "data" / "audit" / "audit.jsonl"
    with app_with_rules(str(tmp_path / "data")) as app, user(app) as admin, user(app, "eve") as eve:
        assert not path.exists()
        eve.ask(7, m.ListOffsetsRequest(topics=[m.ListOffsetsRequestTopic(name="t")]))
        admin.allow("eve", AclOperation.DESCRIBE, ResourceType.TOPIC, "t")
        admin.ask(
            3,
            m.DeleteAclsRequest(
                filters=[
                    m.DeleteAclsRequestFilter(
                        resource_type_filter=ANY_RESOURCE,
                        pattern_type_filter=ANY_PATTERN,
                        operation=ANY_OPERATION,
                        permission_type=ANY_PERMISSION,
                    )
                ]
            ),
        )
        denied, created, deleted = wait_for(path, 3)
    assert denied.pop("time").endswith("+00:00")
    assert denied == {
        "event": "authorization.denied",
        "principal": "User:eve",
        "host": "127.0.0.1",
        "client_id": "eve",
        "listener": "PLAINTEXT",
        "operation": "DESCRIBE",
        "resource_type": "TOPIC",
        "resource": "t",
    }
    assert (created["event"], created["principal"], created["rule_principal"]) == (
        "acl.created",
        "User:admin",
        "User:eve",
    )
    assert {**created, "time": 0, "event": 0} == {**deleted, "time": 0, "event": 0}
    assert deleted["event"] == "acl.deleted"


def test_lines_are_written_when_the_broker_stops_and_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        with app_with_rules(str(tmp_path)) as app:
            app.call(lambda app=app: [app.app.services.audit("test", number=number) for number in range(500)])
    found = lines(tmp_path / "audit" / "audit.jsonl")
    assert [each["number"] for each in found] == [*range(500)] * 2


def test_denials_are_limited_and_the_missing_ones_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "LIMITED_LINES_PER_S_MAX", 10)
    path = tmp_path / "audit" / "audit.jsonl"
    with app_with_rules(str(tmp_path)) as app:
        audit = app.app.services.audit
        audit._left = 10
        app.call(lambda: [audit("login.failed", number=number) for number in range(100)])
        found = wait_for(path, 11)
    assert len(found) == 11
    assert (found[-1]["event"], found[-1]["count"]) == ("audit.lines_missing", 90)


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    with app_with_rules(str(tmp_path)) as app:
        app.call(lambda: app.app.services.audit("test", name="x" * 100_000))
    (line,) = lines(tmp_path / "audit" / "audit.jsonl")
    assert len(line["name"]) < 1000


def test_the_audit_log_can_be_off_or_elsewhere(tmp_path: Path) -> None:
    for directory in ("off", str(tmp_path / "elsewhere")):
        data = tmp_path / "data"
        with RunningApp(str(data), audit_log_directory=directory) as app:
            app.call(lambda app=app: app.app.services.audit("test"))
        assert not (data / "audit").exists()
    assert len(lines(tmp_path / "elsewhere" / "audit.jsonl")) == 1


def test_a_full_file_is_renamed_and_the_oldest_removed(tmp_path: Path) -> None:
    files = AuditFiles(SystemFiles(), str(tmp_path), file_bytes_max=100, files_max=3)
    for start in range(0, 60, 6):
        files.append([b"%09d\n" % number for number in range(start, start + 6)])
    files.close()
    kept = [tmp_path / name for name in ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in kept)
    assert [int(line) for path in kept for line in path.read_text().splitlines()] == [*range(30, 60)]
    assert all(path.stat().st_size <= 100 for path in kept)
