"""A client of schema registries that have Confluent's REST API (Confluent, Karapace, Apicurio).

Schemas never change under their id, so that they are cached for the life of a process: SCHEMAS_MAX of them, the least
recently used evicted first. An id that the registry does not know is asked for again after UNKNOWN_S, because the
registry may be behind its producers.

A request that fails for a reason that can pass (no connection, a timeout, a status of 429 or from 500 up) is sent
ATTEMPTS_MAX times with growing delays. Then RegistryUnavailable is raised: the reader's task fails and is run again,
and no record is taken for a bad one.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.registry.settings import RegistrySettings, SchemaChoice

SCHEMAS_MAX = 1_000
UNKNOWN_S = 10.0
UNKNOWN_MAX = 10_000
ATTEMPTS_MAX = 4
DELAY_S = 0.2
ANSWER_BYTES_MAX = 16 * 2**20
REFERENCES_MAX = 200
CLIENTS_MAX = 50
_GUIDS = "/schemas/guids/"
_CONTENT = "application/vnd.schemaregistry.v1+json"
_TOO_MANY, _SERVER_ERROR, _NOT_FOUND, _CONFLICT, _INVALID = 429, 500, 404, 409, 422


class RegistryError(PipelineError):
    """A request that the registry refused; the message says which, and why."""


class RegistryUnavailable(PipelineError):
    """A registry that does not answer, or answers that it cannot."""


class UnknownSchema(RegistryError):
    """An id, subject or version that the registry does not have."""


@dataclass(frozen=True)
class Reference:
    name: str  # as the schema names it: a type's name for Avro, a file's for Protobuf
    schema: RegisteredSchema


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema's text, its type (AVRO, PROTOBUF or JSON) and the schemas that it refers to."""

    text: str
    type: str
    references: tuple[Reference, ...] = ()


@lru_cache(CLIENTS_MAX)
def client_for(settings: RegistrySettings) -> RegistryClient:
    """Return the process's client of a registry, and with it the schemas that it has cached."""
    return RegistryClient(settings)


class RegistryClient:
    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._schemas: OrderedDict[str, RegisteredSchema] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._ids: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._chosen: dict[SchemaChoice, tuple[int, RegisteredSchema]] = {}

    def by_id(self, id: int) -> RegisteredSchema:
        """Return the schema of an id. Raises UnknownSchema, RegistryError, RegistryUnavailable."""
        return self._cached(f"/schemas/ids/{id}")

    def by_guid(self, guid: str) -> RegisteredSchema:
        return self._cached(f"{_GUIDS}{guid}")

    def chosen(self, choice: SchemaChoice) -> tuple[int, RegisteredSchema]:
        """Return a subject's schema and its id. The latest version is asked for once in the life of a process."""
        with self._lock:
            if choice not in self._chosen:
                path = f"/subjects/{quote(choice.subject, safe='')}/versions/{choice.version}"
                document = self._request("GET", path)
                self._chosen[choice] = (_integer(document, "id"), self._schema(document, 0))
            return self._chosen[choice]

    def id_of(self, choice: SchemaChoice, schema: RegisteredSchema) -> int:
        """Return the id of a sink's schema under its subject, registering it if it may be and is not."""
        key = (choice.subject, schema.type, schema.text)
        with self._lock:
            if key not in self._ids:
                path = f"/subjects/{quote(choice.subject, safe='')}" + ("/versions" if choice.register else "")
                document: dict[str, Any] = {"schema": schema.text}
                if schema.type != "AVRO":  # the default, which older registries do not know by name
                    document["schemaType"] = schema.type
                answer = self._request("POST", path, document)
                self._ids[key] = _integer(answer, "id")
                if len(self._ids) > SCHEMAS_MAX:
                    self._ids.popitem(last=False)
            return self._ids[key]

    def ping(self) -> None:
        """Raise RegistryUnavailable or RegistryError if the registry cannot be used."""
        self._request("GET", "/subjects")

    def _cached(self, path: str) -> RegisteredSchema:
        with self._lock:
            if path in self._schemas:
                self._schemas.move_to_end(path)
                return self._schemas[path]
            if time.monotonic() < self._unknown.get(path, 0.0):
                raise UnknownSchema(f"the registry {self._settings.url} has no {path.removeprefix('/')}")
            try:
                found = self._schema(self._request("GET", path), 0)
            except UnknownSchema:
                self._unknown[path] = time.monotonic() + UNKNOWN_S
                if len(self._unknown) > UNKNOWN_MAX:
                    self._unknown.popitem(last=False)
                raise
            self._schemas[path] = found
            if len(self._schemas) > SCHEMAS_MAX:
                self._schemas.popitem(last=False)
            return found

    def _schema(self, document: Any, depth: int) -> RegisteredSchema:
        text = document.get("schema") if isinstance(document, dict) else None
        if not isinstance(text, str):
            raise RegistryError(f"the registry {self._settings.url} answered without a schema")
        named = document.get("references") or []
        if depth > 10 or len(named) > REFERENCES_MAX:
            raise RegistryError(f"a schema of the registry {self._settings.url} has too many references")
        references = tuple(self._reference(each, depth) for each in named)
        return RegisteredSchema(text, str(document.get("schemaType") or "AVRO"), references)

    def _reference(self, named: dict[str, Any], depth: int) -> Reference:
        subject, version = quote(str(named.get("subject")), safe=""), named.get("version")
        document = self._request("GET", f"/subjects/{subject}/versions/{version}")
        return Reference(str(named.get("name")), self._schema(document, depth + 1))

    def _request(self, method: str, path: str, document: Any = None) -> Any:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return self._once(method, path, document)
            except RegistryUnavailable as error:
                if attempt == ATTEMPTS_MAX:
                    raise RegistryUnavailable(f"{error}, after {ATTEMPTS_MAX} attempts") from error
                time.sleep(DELAY_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, document: Any) -> Any:
        url = self._settings.url
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{url}{path}", body, self._headers(), method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._settings.timeout_s) as response:
                data = response.read(ANSWER_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, method, path) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", None) or error
            raise RegistryUnavailable(f"the registry {url} does not answer ({cause or type(error).__name__})") from None
        try:
            if len(data) > ANSWER_BYTES_MAX:
                raise ValueError("too long")
            return json.loads(data)
        except ValueError as error:
            raise RegistryError(
                f"the registry {url} answered {method} {path} with something else than JSON; is it a registry's URL? "
                f"Apicurio's ends in /apis/ccompat/v7 ({error})"
            ) from None

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_CONTENT}, application/json", "Content-Type": _CONTENT}
        if self._settings.auth:
            headers["Authorization"] = f"Basic {base64.b64encode(self._settings.auth.encode()).decode()}"
        return headers

    def _refusal(self, error: urllib.error.HTTPError, method: str, path: str) -> PipelineError:
        code, message = _explanation(error)
        said = f"the registry {self._settings.url} answered {method} {path} with status {error.code}"
        reason = f"{said}: {message}" if message else said
        if error.code == _TOO_MANY or error.code >= _SERVER_ERROR:
            return RegistryUnavailable(reason)
        if error.code in (401, 403):
            return RegistryError(f"{reason}; check the option basic.auth.user.info")
        if error.code == _NOT_FOUND:
            # A path that the server does not have is 404 too, without a code. Some do not have GUIDs.
            is_known = code or path.startswith(_GUIDS)
            return UnknownSchema(reason) if is_known else RegistryError(f"{reason}; is it a registry's URL?")
        if error.code in (_CONFLICT, _INVALID):
            return RegistryError(f"{reason}; the schema is not compatible with the subject's, or not valid")
        return RegistryError(reason)


def _explanation(error: urllib.error.HTTPError) -> tuple[int, str]:
    try:
        document = json.loads(error.read(ANSWER_BYTES_MAX))
        return int(document.get("error_code", 0)), str(document.get("message", ""))[:500]
    except (OSError, ValueError, TypeError, AttributeError, http.client.HTTPException):
        return 0, ""


def _integer(document: Any, name: str) -> int:
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise RegistryError(f"the registry answered without {name}")
    return value
