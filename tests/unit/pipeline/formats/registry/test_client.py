"""The client of schema registries: its cache, its retries, and what it says of a registry that fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from flowstone.pipeline import PipelineError
from flowstone.pipeline.formats.registry import client as registry_client
from flowstone.pipeline.formats.registry.client import (
    ATTEMPTS_MAX,
    RegisteredSchema,
    RegistryClient,
    RegistryError,
    RegistryUnavailable,
    UnknownSchema,
)
from flowstone.pipeline.formats.registry.settings import RegistrySettings, SchemaChoice, choice_of, settings_of
from flowstone.pipeline.model import Format, FormatKind
from tests.spark_pipeline.formats import schema_registry
from tests.spark_pipeline.formats.schema_registry import Failure, SchemaRegistry

LONG = {"schema": '"long"'}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(registry_client, "DELAY_S", 0.01)
    with schema_registry.running() as found:
        yield found


@pytest.fixture
def client(registry: SchemaRegistry) -> RegistryClient:
    return RegistryClient(RegistrySettings(registry.url, timeout_s=0.3))


def fails(*failures: Failure) -> Iterator[Failure | None]:
    yield from failures
    while True:
        yield None


def test_a_schema_is_asked_for_once(registry: SchemaRegistry, client: RegistryClient) -> None:
    id = registry.add("t-value", LONG)
    assert client.by_id(id) == client.by_id(id) == RegisteredSchema('"long"', "AVRO")
    assert client.by_guid(registry.guid(id)) == client.by_guid(registry.guid(id))
    assert len(registry.requests) == 2


def test_the_cache_is_bounded(
    registry: SchemaRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "SCHEMAS_MAX", 3)
    ids = [registry.add("t", {"schema": f'{{"type": "fixed", "name": "f", "size": {n + 1}}}'}) for n in range(5)]
    for id in ids:
        client.by_id(id)
    client.by_id(ids[-1])
    assert len(registry.requests) == 5
    client.by_id(ids[0])
    assert len(registry.requests) == 6


def test_references_are_read_with_the_schema(registry: SchemaRegistry, client: RegistryClient) -> None:
    registry.add("line", {"schema": "inner"})
    id = registry.add("t", {"schema": "outer", "references": [{"name": "Line", "subject": "line", "version": 1}]})
    [reference] = client.by_id(id).references
    assert (reference.name, reference.schema.text) == ("Line", "inner")


def test_an_unknown_id_is_asked_for_again_after_a_while(
    registry: SchemaRegistry, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        with pytest.raises(UnknownSchema, match="schemas/ids/1"):
            client.by_id(1)
    assert len(registry.requests) == 1
    registry.add("t", LONG)
    now = time.monotonic()
    monkeypatch.setattr(registry_client.time, "monotonic", lambda: now + registry_client.UNKNOWN_S + 1)
    assert client.by_id(1).text == '"long"'


@pytest.mark.parametrize("failure", [(503, "busy"), (429, ""), (0, "")], ids=["503", "429", "closed"])
def test_a_failure_that_can_pass_is_retried(registry: SchemaRegistry, client: RegistryClient, failure: Failure) -> None:
    id = registry.add("t", LONG)
    failures = fails(failure, failure)
    registry.fail = lambda path: next(failures)
    assert client.by_id(id).text == '"long"'
    assert len(registry.requests) == 3


def test_a_registry_that_stays_down_is_no_fault_of_records(registry: SchemaRegistry, client: RegistryClient) -> None:
    registry.fail = lambda path: (500, '{"error_code": 50001, "message": "store is down"}')
    with pytest.raises(RegistryUnavailable, match=f"status 500: store is down, after {ATTEMPTS_MAX} attempts"):
        client.by_id(1)
    assert len(registry.requests) == ATTEMPTS_MAX


def test_nothing_at_the_address_is_said_clearly(client: RegistryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "DELAY_S", 0.01)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = RegistryClient(RegistrySettings(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout_s=0.3))
        with pytest.raises(RegistryUnavailable, match=r"does not answer \(.*refused.*\), after"):
            nobody.ping()


def test_a_registry_that_accepts_and_says_nothing_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_client, "DELAY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = RegistrySettings(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(RegistryUnavailable, match="timed out"):
            RegistryClient(settings).ping()


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((200, "<html>"), "something else than JSON"),
        ((200, "[]"), "answered without a schema"),
        ((404, ""), "is it a registry's URL"),
        ((401, ""), "check the option basic.auth.user.info"),
        ((409, '{"error_code": 409, "message": "field total was removed"}'), "field total was removed"),
    ],
)
def test_other_failures_are_reported_at_once(
    registry: SchemaRegistry, client: RegistryClient, failure: Failure, message: str
) -> None:
    registry.fail = lambda path: failure
    with pytest.raises(RegistryError, match=message):
        client.by_id(1)
    assert len(registry.requests) == 1


def test_a_sinks_schema_is_registered_once(registry: SchemaRegistry, client: RegistryClient) -> None:
    choice, schema = SchemaChoice("t-value"), RegisteredSchema('"long"', "AVRO")
    assert client.id_of(choice, schema) == client.id_of(choice, schema) == 1
    assert [each[:2] for each in registry.requests] == [("POST", "/subjects/t-value/versions")]


def test_user_and_password_are_sent_and_never_shown(registry: SchemaRegistry) -> None:
    for url, options in (
        (registry.url.replace("//", "//us%40er:secret@"), {}),
        (registry.url, {"basic.auth.user.info": "us@er:secret"}),
    ):
        settings = settings_of(Format(FormatKind.AVRO, registry=url, options=options))
        RegistryClient(settings).ping()
        assert registry.requests[-1][2]["Authorization"] == "Basic dXNAZXI6c2VjcmV0"
        assert "secret" not in repr(settings)
        registry.fail = lambda path: (401, "")
        with pytest.raises(RegistryError) as caught:
            RegistryClient(settings).ping()
        assert "secret" not in str(caught.value)
        registry.fail = lambda path: None


@pytest.mark.parametrize(
    ("registry_url", "options", "message"),
    [
        ("localhost:8081", {}, "is not a URL"),
        ("http://h", {"request.timeout.ms": "0"}, "request.timeout.ms is 0"),
        ("http://h", {"basic.auth.user.info": "user"}, "user:password"),
        ("http://h", {"colour": "red"}, "no option colour"),
        ("http://h", {"subject": "s", "version": "first"}, "version is first"),
        ("http://h", {"subject": "s", "auto.register.schemas": "maybe"}, "should be true or false"),
        ("http://h", {"subject": ""}, "not clear under which subject"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(registry_url: str, options: dict[str, str], message: str) -> None:
    format = Format(FormatKind.AVRO, registry=registry_url, options=options)
    with pytest.raises(PipelineError, match=message):
        choice_of(format, "" if settings_of(format) else "never")
