"""Client of the HTTP pages of a cluster's brokers.

Each broker reports the address of its pages (its setting `http.listener`). A loopback address of another machine would
reach a different broker, so every request or response names the cluster.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, fetch_metadata, result_of, split_address
from flowstone.cli.common.connection_options import http_token
from flowstone.cli.common.errors import CommandError
from flowstone.client.security import default_security

HTTP_TIMEOUT_S = 3.0
OK, ACCEPTED = 200, 202
SETTING, TLS_SETTING = "http.listener", "http.ssl.enable"
_EVERY_ADDRESS = ("0.0.0.0", "::", "")
# The errors of a page request.
PAGE_ERRORS = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)


class Address(NamedTuple):
    """The address of a broker's pages."""

    host: str
    port: int
    is_encrypted: bool = False


class BrokerPages(NamedTuple):
    addresses: list[Address]
    cluster_id: str

    def ask(self, path: str, document: Any = None, timeout_s: float = HTTP_TIMEOUT_S) -> tuple[int, Any]:
        """Return the status and response of a broker for its own page. Raises CommandError if the broker refuses."""
        if not self.addresses:
            raise CommandError(
                f"this needs the broker's HTTP pages, which are off: start it with --http HOST:PORT ({SETTING})"
            )
        address = self.addresses[0]
        try:
            status, answer = ask(address, path, document, timeout_s)
        except PAGE_ERRORS as error:
            raise CommandError(
                f"the broker's page http://{address[0]}:{address[1]}{path.partition('?')[0]} cannot be read ({error})"
            ) from None
        if status not in (OK, ACCEPTED):
            reason = (answer.get("message") or answer.get("reason")) if isinstance(answer, dict) else None
            raise CommandError(f"the broker refused: {reason or f'status {status}'}")
        return status, answer


def find_pages(admin: AdminClient, bootstrap: str) -> BrokerPages:
    metadata = fetch_metadata(admin, bootstrap)
    addresses = []
    for broker in metadata.brokers.values():
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker.id))
        answers = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        result = result_of(answers[resource], bootstrap)
        entry = result.get(SETTING)
        if entry is not None and entry.value:
            host, port = split_address(entry.value)
            is_encrypted = _is_true(result.get(TLS_SETTING))
            addresses.append(Address(str(broker.host) if host in _EVERY_ADDRESS else host, port, is_encrypted))
    return BrokerPages(addresses, str(metadata.cluster_id))


def ask(address: Address, path: str, document: Any = None, timeout_s: float = HTTP_TIMEOUT_S) -> tuple[int, Any]:
    """Return the status and JSON response of a page, for a GET or, with a document, a POST. Raises PAGE_ERRORS."""
    headers = {"Authorization": f"Bearer {token}"} if (token := http_token()) else {}
    connection = _connection(address, timeout_s)
    try:
        if document is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _connection(address: Address, timeout_s: float) -> http.client.HTTPConnection:
    if not address.is_encrypted:
        return http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    context = default_security().tls_context()
    return http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=context)


def _is_true(entry: Any) -> bool:
    return entry is not None and entry.value == "true"
