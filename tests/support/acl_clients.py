"""A broker with access rules, and clients whose client id is their principal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.session import Principal
from flowstone.cluster.decisions.acl_operations import AclOperation
from flowstone.cluster.image.acl import ALLOW, LITERAL, Acl
from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_encoder, response_decoder
from flowstone.wire.frames import encode_request_header, parse_response_header
from flowstone.wire.messages import CreateAclsRequest, CreateAclsRequestCreation
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, api_key, framed

STANDARD = "StandardAuthorizer"
ADMIN = "admin"
SUPER_USERS = f"User:{ADMIN}"


def principal_by_client_id(_name: str, handler: Handler) -> Handler:
    """For `intercept`: the session's principal is `User:<client id>`; one without a client id stays anonymous."""

    def handle(services: Services, context: RequestContext, request: Any) -> Any:
        session = context.session
        if session.client_id and session.principal.name != session.client_id:
            session.principal = Principal("User", session.client_id)
        return handler(services, context, request)

    return handle


def app_with_rules(data: str, **settings: Any) -> RunningApp:
    """A broker with an authorizer, whose super user is `ADMIN`."""
    more = {"authorizer_class_name": STANDARD, "super_users": SUPER_USERS} | settings
    return RunningApp(data, intercept=principal_by_client_id, **more)


class User:
    """A connection of one user."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name

    def send(self, version: int, request: Any) -> None:
        key = api_key(request)
        body = b"".join(bytes(chunk) for chunk in request_encoder(key, version)(request))  # type: ignore[arg-type]
        self.client.send(framed(encode_request_header(key, version, 1, self.name) + body))

    def receive(self, version: int, request: Any) -> tuple[Any, bytes]:
        """The response, and its bytes."""
        key, data = api_key(request), self.client.receive()
        _, position = parse_response_header(memoryview(data), 0, APIS[key].has_flexible_response_header(version))
        return response_decoder(key, version)(memoryview(data), position), data

    def ask(self, version: int, request: Any) -> Any:
        self.send(version, request)
        return self.receive(version, request)[0]

    def allow(
        self, who: str, operation: AclOperation, kind: int, name: str, permission: int = ALLOW, pattern: int = LITERAL
    ) -> None:
        """Add a rule, as a super user."""
        rule = Acl(kind, name, pattern, f"User:{who}", "*", operation, permission)
        answer = self.ask(3, CreateAclsRequest(creations=[creation(rule)]))
        assert [each.error_code for each in answer.results] == [0]


def creation(rule: Acl) -> CreateAclsRequestCreation:
    return CreateAclsRequestCreation(
        resource_type=rule.resource_type,
        resource_name=rule.resource_name,
        resource_pattern_type=rule.pattern_type,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


@contextmanager
def user(app: RunningApp, name: str = ADMIN) -> Iterator[User]:
    with app.client() as client:
        yield User(client, name)


def codes_in(message: Any) -> Iterator[int]:
    """Every error code of a response, but for zeros."""
    for name in message.__slots__:
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code") and value:
            yield value
        for each in value if isinstance(value, list | tuple) else (value,):
            if hasattr(each, "__slots__") and not isinstance(each, bytes | str):
                yield from codes_in(each)
