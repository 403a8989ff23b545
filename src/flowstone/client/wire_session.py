"""The protocol state of one connection to a broker, without its socket: versions, correlation ids and frames.

`connection` (blocking) and `peer` (on the event loop) move the bytes. A session encodes requests in a version that both
sides have and decodes the response to a request that it has encoded.

Invariant: a response is decoded only if its correlation id is that of the request it is taken for.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, TypeVar

from flowstone.client.errors import BadAnswer, ClientError
from flowstone.errors import ErrorCode, ProtocolError
from flowstone.types import Bytes
from flowstone.wire.apis import API_VERSIONS_KEY, APIS, Api
from flowstone.wire.codec import request_encoder, response_decoder
from flowstone.wire.frames import encode_request_header, parse_response_header
from flowstone.wire.message import Message
from flowstone.wire.messages import ApiVersionsRequest, ApiVersionsResponse

# A batch of the largest request that brokers take by default (100 MiB), and the rest of its frame.
RESPONSE_BYTES_MAX = 128 << 20
SIZE_BYTES = 4  # in front of each frame

SOFTWARE_NAME, SOFTWARE_VERSION = "flowstone-client", "1"
API_VERSIONS_VERSION = 3

_API_OF = {api.request: api for api in APIS.values()}
_SIZE = Struct(">i")
_FRAME_BYTES_MIN = 4  # a correlation id

Response = TypeVar("Response", bound=Message)
VersionRange = tuple[int, int]


class SentRequest(NamedTuple):
    """A request that is not answered yet."""

    api: Api
    version: int
    correlation_id: int


class WireSession:
    def __init__(self, broker: str, client_id: str, known_versions: Callable[[Api], VersionRange], hint: str) -> None:
        """Create a session. `broker` names the other side in errors, and `hint` says which releases have the versions
        needed.

        `known_versions` returns the lowest and the highest version that this side has of an API.
        """
        self._broker, self._client_id, self._hint = broker, client_id, hint
        self._known_versions = known_versions
        self._correlation_id = 0
        self._versions: dict[int, int] = {API_VERSIONS_KEY: API_VERSIONS_VERSION}
        self._served: dict[int, VersionRange] = {}

    # Versions

    def versions_request(self) -> ApiVersionsRequest:
        return ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)

    def ask_oldest_versions(self) -> None:
        """Send the next ApiVersions request in version 0, which every broker has."""
        self._versions[API_VERSIONS_KEY] = 0

    def agree(self, answer: ApiVersionsResponse) -> None:
        """Record the versions that the broker serves. Raises BadAnswer if the response does not list them."""
        if answer.error_code:
            raise BadAnswer(f"the broker at {self._broker} does not list its versions: error {answer.error_code}")
        self._served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        if API_VERSIONS_KEY in self._served:  # from now on in the newest version that both sides have
            self._versions.pop(API_VERSIONS_KEY, None)

    def _version(self, api: Api) -> int:
        version = self._versions.get(api.key)
        if version is None:
            lowest, highest = self._known_versions(api)
            served_lowest, served_highest = self._served.get(api.key, (0, -1))
            version = min(highest, served_highest)
            if version < max(lowest, served_lowest):
                raise BadAnswer(
                    f"the broker at {self._broker} has no version of {api.name} between {lowest} and {highest}"
                    f"{self._hint}"
                )
            self._versions[api.key] = version
        return version

    def serves(self, request: type[Message], versions: VersionRange) -> bool:
        """Return whether the broker has one of these versions of a request."""
        lowest, highest = self._served.get(_API_OF[request].key, (0, -1))
        return max(lowest, versions[0]) <= min(highest, versions[1])

    # Frames

    def encode(self, request: Message, versions: VersionRange | None = None) -> tuple[SentRequest, list[Bytes]]:
        """Return what the response will be matched with, and the parts of the frame.

        With `versions` the request takes the newest of these that the broker serves, which has one (`serves`).

        Raises BadAnswer if the broker has no version of the request that this side has, and ClientError if a value
        does not fit its field.
        """
        api = _API_OF[type(request)]
        version = self._version(api) if versions is None else min(versions[1], self._served[api.key][1])
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        try:
            body: list[Bytes] = request_encoder(api.key, version)(request)  # type: ignore[assignment]
        except struct_error as error:
            reason = f"a number does not fit its field: {error}"
            raise ClientError(f"{type(request).__name__}: {reason}") from None
        header = encode_request_header(api.key, version, self._correlation_id, self._client_id)
        size = _SIZE.pack(len(header) + sum(map(len, body)))
        return SentRequest(api, version, self._correlation_id), [size + header, *body]


def frame_size(buffer: memoryview, at: int = 0) -> int:
    """Return the size of the response that begins at `at`. Raises ProtocolError if it is out of bounds."""
    size_bytes: int = _SIZE.unpack_from(buffer, at)[0]
    if not _FRAME_BYTES_MIN <= size_bytes <= RESPONSE_BYTES_MAX:
        raise ProtocolError(f"a response of {size_bytes} bytes; the limit is {RESPONSE_BYTES_MAX}")
    return size_bytes


def decode(sent: SentRequest, frame: memoryview) -> Message:
    """Return the response to `sent`. Raises ProtocolError if `frame` is not that."""
    api, version, expected_id = sent
    correlation_id, at = parse_response_header(frame, 0, api.has_flexible_response_header(version))
    if correlation_id != expected_id:
        raise ProtocolError(f"the answer to request {correlation_id} came for {expected_id}")
    if api.key == API_VERSIONS_KEY and _is_version_refused(frame, at):
        version = 0
    return response_decoder(api.key, version)(frame, at)


def _is_version_refused(frame: memoryview, at: int) -> bool:
    """Return whether a broker refuses the version of an ApiVersions request; that answer is always in version 0."""
    return int.from_bytes(frame[at : at + 2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
