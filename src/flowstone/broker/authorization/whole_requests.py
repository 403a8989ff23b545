"""Guards of requests that are allowed or refused as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from flowstone.broker.authorization.guards import Complete, Restricting, Restriction
from flowstone.broker.requests.access import AUTHORIZATION_ERRORS, Access
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import Permission
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.decisions.acl_operations import ResourceType
from flowstone.errors import ApiError
from flowstone.wire.apis import APIS

MESSAGES = {
    ResourceType.TOPIC: "Topic authorization failed.",
    ResourceType.GROUP: "Group authorization failed.",
    ResourceType.CLUSTER: "Cluster authorization failed.",
    ResourceType.TRANSACTIONAL_ID: "Transactional Id authorization failed.",
    ResourceType.DELEGATION_TOKEN: "Delegation Token authorization failed.",
}


def refusal(permission: Permission) -> ApiError:
    """Return the error for a client that does not have the permission."""
    kind = permission.resource_type
    return ApiError(AUTHORIZATION_ERRORS[kind], MESSAGES[kind])


class Check(NamedTuple):
    """A permission for the resource that a field of the request names; without a field, for the cluster.

    A field that is null names nothing, and needs no permission.
    """

    permission: Permission
    field: str | None = None

    def is_met(self, access: Access, session: ClientSession, request: Any) -> bool:
        name = self._name(request)
        return name is None or access.may(session, self.permission, name)

    def require(self, access: Access, session: ClientSession, request: Any) -> None:
        """Raise ApiError, with an audit line, if the session has not the permission."""
        name = self._name(request)
        if name is not None and not access.check(session, self.permission, name):
            raise refusal(self.permission)

    def _name(self, request: Any) -> str | None:
        return CLUSTER_NAME if self.field is None else getattr(request, self.field)


def access_of(services: Services) -> Access:
    """Return the authorizer, without which there are no guards."""
    assert services.access is not None
    return services.access


class Whole:
    """Requires all of several permissions."""

    grows = False

    def __init__(self, *checks: Check) -> None:
        self._checks = checks
        self.permissions = frozenset(check.permission for check in checks)

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        session = context.session
        decisions = session.decisions
        if decisions is None or decisions.is_stale:
            decisions = access_of(services).decisions_of(session)
        for permission, field in self._checks:
            name = CLUSTER_NAME if field is None else getattr(request, field)
            # A null name names nothing. What is not decided yet takes longer.
            if name is None or decisions[permission].get(name):
                continue
            if not access_of(services).may(session, permission, name):
                return False
        return True

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        for check in self._checks:
            check.require(access_of(services), context.session, request)
        return None


class OneOf:
    """Requires one of several permissions for the cluster; the first one is named in the refusal."""

    grows = False

    def __init__(self, *permissions: Permission) -> None:
        self._permissions, self.permissions = permissions, frozenset(permissions)

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        access, session = access_of(services), context.session
        return any(access.may(session, permission) for permission in self._permissions)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        Check(self._permissions[0]).require(access_of(services), context.session, request)
        return None


class EmptyAnswer:
    """Guard that requires a permission for the cluster; without it, the response is empty, with an error code if it has
    one.
    """

    grows = False

    def __init__(self, permission: Permission) -> None:
        self._permission, self.permissions = permission, frozenset((permission,))

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return access_of(services).may(context.session, self._permission)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        access_of(services).check(context.session, self._permission)
        response: Any = APIS[context.api_key].response()
        response.error_code = AUTHORIZATION_ERRORS[self._permission.resource_type]
        return Restriction(lambda answer: answer, response)


class NothingAllowed:
    """Refuses every request: an API whose needs are not known must not be open to everybody."""

    grows = False

    def __init__(self, permissions: Iterable[Permission]) -> None:
        self.permissions = frozenset(permissions)

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return False

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        access_of(services).deny(context.session, next(iter(self.permissions)))
        raise refusal(next(iter(self.permissions)))


class Completed:
    """Allows the request, and completes its response by what the session may do."""

    grows = False

    def __init__(self, *permissions: Permission, hides_if: Any, complete: Any) -> None:
        """`hides_if` says of a request whether its response must be completed by `complete`."""
        self.permissions = frozenset(permissions)
        self._hides_if, self._complete = hides_if, complete

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        return not self._hides_if(access_of(services), context.session, request)

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        yield from ()
        access, session = access_of(services), context.session
        complete: Complete = lambda response: self._complete(access, session, response)  # noqa: E731
        return Restriction(complete)
