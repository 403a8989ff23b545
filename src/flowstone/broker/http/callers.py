"""Authorization of HTTP pages: checks the permissions that a page declares, for the resources that the request names.

A permission for the cluster is checked here, and one for a topic or a group whose name is a parameter of the page. A
page that learns of names in another way declares `checks_names`, and asks its request's caller itself. For any other
page the caller needs the permission for all resources, by a rule for `*`: what is forgotten is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowstone.broker.requests.access import AUTHORIZATION_ERRORS, Access
from flowstone.broker.requests.permissions import Permission
from flowstone.broker.requests.session import ANONYMOUS, ClientSession, Principal
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.decisions.acl_operations import ResourceType
from flowstone.cluster.image.acl import WILDCARD
from flowstone.errors import ApiError

LISTENER_NAME = "HTTP"
_PARAMETERS = {ResourceType.TOPIC: "topic", ResourceType.GROUP: "group"}


class Caller:
    """The client of one HTTP request."""

    def __init__(self, access: Access | None, address: str, principal: Principal = ANONYMOUS) -> None:
        self._access = access
        self._session: ClientSession | None = None
        if access is not None:
            self._session = ClientSession(LISTENER_NAME, f"{address}:0")
            self._session.principal = principal

    def may(self, permission: Permission, name: str) -> bool:
        """Return whether the caller has the permission for the resource."""
        return self._access is None or self._session is None or self._access.may(self._session, permission, name)

    def require(self, permission: Permission, name: str) -> None:
        """Raise ApiError if the caller has not the permission."""
        if self._access is None or self._session is None or self._access.check(self._session, permission, name):
            return
        kind = permission.resource_type
        what = "the cluster" if kind is ResourceType.CLUSTER else f"the {kind.name.lower()} {name}"
        raise ApiError(
            AUTHORIZATION_ERRORS[kind], f"{self._session.principal} may not {permission.operation.name} {what}"
        )

    def require_all(
        self, permissions: Iterable[Permission], parameters: Mapping[str, str | int], *, checks_names: bool
    ) -> None:
        """Raise ApiError if the caller has not all permissions of a page that the request's parameters show."""
        for permission in permissions:
            kind = permission.resource_type
            if kind is ResourceType.CLUSTER:
                self.require(permission, CLUSTER_NAME)
                continue
            name = parameters.get(_PARAMETERS.get(kind, ""))
            if isinstance(name, str):
                self.require(permission, name)
            elif not checks_names:
                self.require(permission, WILDCARD)


NOBODY = Caller(None, "")
