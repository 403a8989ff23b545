"""Guards of requests that name many resources, each of which is allowed or refused alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from flowstone.broker.authorization.guards import Restricting, Restriction, close_connection
from flowstone.broker.authorization.whole_requests import Check, access_of, refusal
from flowstone.broker.loop.time_slices import batched
from flowstone.broker.requests.access import Access
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.error_responses import has_error_of_its_own, refused_entries
from flowstone.broker.requests.permissions import Permission
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.decisions.acl_changes import CLUSTER_NAME
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.apis import APIS

# Entries looked at before other work may run; a decision that is not cached takes some microseconds.
ENTRIES_AT_ONCE = 500

# The permissions that an entry needs, and the name of its resource; None if there is none to protect.
Needs = tuple[Sequence[Permission], str | None]


class Entries:
    """Requires permissions for each entry of an array, after those for the whole request."""

    grows = True

    def __init__(
        self,
        array: str,
        *permissions: Permission,
        name: str | None = "name",
        unless: Permission | None = None,
        whole: Iterable[Check] = (),
    ) -> None:
        """Check each entry of `array`.

        `name` is the field with the name of an entry's resource, None if the entries are the names. An entry without a
        name has a topic id. With the permission `unless` for the cluster every entry is allowed.
        """
        self.array, self._name, self._unless, self._whole = array, name, unless, tuple(whole)
        self._needed = permissions
        # Whether an entry needs one permission for what its field `name` names.
        self._is_simple = type(self).needs is Entries.needs and len(permissions) == 1 and name == "name"
        self.permissions = frozenset((*permissions, *(each.permission for each in self._whole)))
        if unless is not None:
            self.permissions |= {unless}

    def allows(self, services: Services, context: RequestContext, request: Any) -> bool:
        access, session = access_of(services), context.session
        for permission, field in self._whole:
            name = CLUSTER_NAME if field is None else getattr(request, field)
            if name is not None and not access.may(session, permission, name):
                return False
        if self._unless is not None and access.may(session, self._unless):
            return True
        image = services.metadata.image
        if not self._is_simple:
            return all(self._may(access, session, image, request, each) for each in getattr(request, self.array) or ())
        by_name = access.decisions_of(session)[self._needed[0]]
        for entry in getattr(request, self.array) or ():
            name = entry.name
            # A name that is not allowed, not decided yet, or not there, takes longer.
            if not by_name.get(name) and not self._may(access, session, image, request, entry):
                return False
        return True

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        access, session, image = access_of(services), context.session, services.metadata.image
        try:
            for check in self._whole:
                check.require(access, session, request)
        except ApiError as refused_whole:
            if has_error_of_its_own(APIS[context.api_key].name, context.api_version):
                raise
            return (yield from self._refuse_all(context, request, refused_whole))
        if self._unless is not None and access.may(session, self._unless):
            return None
        allowed: list[Any] = []
        refused: dict[ErrorCode, list[Any]] = {}
        messages: dict[ErrorCode, str] = {}
        for some in batched(getattr(request, self.array) or (), ENTRIES_AT_ONCE):
            for entry in some:
                error = self._error(access, session, image, request, entry)
                if error is None:
                    allowed.append(entry)
                else:
                    refused.setdefault(error.code, []).append(self.as_told(entry))
                    messages[error.code] = error.message or ""
            yield
        if not refused:
            return None
        setattr(request, self.array, allowed)
        added: dict[str, list[Any]] = {}
        for code, entries in refused.items():
            yield from self._add_refused(context, request, entries, ApiError(code, messages[code]), added)
        answer = None if allowed else APIS[context.api_key].response()
        return self.restriction(context, request, _adding(added), answer)

    def _refuse_all(self, context: RequestContext, request: Any, error: ApiError) -> Restricting:
        """Refuse every entry, since the response has no other field for the error; in slices, as they may be many."""
        added: dict[str, list[Any]] = {}
        yield from self._add_refused(context, request, list(getattr(request, self.array) or ()), error, added)
        return self.restriction(context, request, _adding(added), APIS[context.api_key].response())

    def restriction(
        self, context: RequestContext, request: Any, complete: Callable[[Any], Any], answer: Any
    ) -> Restriction:
        return Restriction(complete, answer)

    def needs(self, image: ClusterImage, request: Any, entry: Any) -> Needs:
        """Return the permissions that an entry needs, and its resource's name."""
        if self._name is None:
            return self._needed, entry
        name: str | None = getattr(entry, self._name, None)
        if not name and hasattr(entry, "topic_id"):
            topic = image.topics_by_id.get(entry.topic_id)
            name = None if topic is None else topic.name
        return self._needed, name

    def as_told(self, entry: Any) -> Any:
        """Return the entry of which the refusal is made."""
        return entry

    def _may(self, access: Access, session: ClientSession, image: ClusterImage, request: Any, entry: Any) -> bool:
        permissions, name = self.needs(image, request, entry)
        if name is None:
            return True
        return all(access.may(session, permission, name) for permission in permissions)

    def _error(
        self, access: Access, session: ClientSession, image: ClusterImage, request: Any, entry: Any
    ) -> ApiError | None:
        permissions, name = self.needs(image, request, entry)
        if name is None:
            return None
        return next((refusal(each) for each in permissions if not access.check(session, each, name)), None)

    def _add_refused(
        self, context: RequestContext, request: Any, entries: list[Any], error: ApiError, added: dict[str, list[Any]]
    ) -> Generator[None, None, None]:
        """Add to `added` the response's entries that refuse these entries of the request."""
        part = copy.copy(request)
        setattr(part, self.array, entries)
        api_name = APIS[context.api_key].name
        found = yield from refused_entries(api_name, context.api_version, part, error.code, error.message or "")
        for array, values in found.items():
            added.setdefault(array, []).extend(values)


def _adding(added: dict[str, list[Any]]) -> Callable[[Any], Any]:
    """Return the function that adds entries to the arrays of a response."""

    def complete(response: Any) -> Any:
        for array, values in added.items():
            setattr(response, array, [*getattr(response, array), *values])
        return response

    return complete


class ProducedTopics(Entries):
    """The topics of Produce: without acknowledgement there is no response, and a refusal closes the connection."""

    def restrict(self, services: Services, context: RequestContext, request: Any) -> Restricting:
        try:
            restriction = yield from super().restrict(services, context, request)
        except ApiError as error:
            if request.acks:
                raise
            return close_connection(f"a produce without acknowledgement was refused: {error.code.name}")
        return restriction

    def restriction(
        self, context: RequestContext, request: Any, complete: Callable[[Any], Any], answer: Any
    ) -> Restriction:
        if request.acks:
            return Restriction(complete, answer)
        failure = "a produce without acknowledgement was refused: TOPIC_AUTHORIZATION_FAILED"
        return close_connection(failure) if answer is not None else Restriction(complete, failure=failure)
