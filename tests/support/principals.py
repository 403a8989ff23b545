"""Clients with principals, without logins: the client id of a request names the user who sends it."""

from __future__ import annotations

from typing import Any

from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.session import Principal

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
