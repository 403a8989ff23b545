"""What the codec's tests share: every (API, version, direction), and messages drawn from the schema itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import strategies as st

from flowstone.errors import ErrorCode
from flowstone.wire import codec
from flowstone.wire.apis import APIS
from flowstone.wire.message import Message
from flowstone.wire.messages import generated
from flowstone.wire.schema import Field, Struct, load_api

INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
YEAR_2100_MS = 4_102_444_800_000

cached_load_api = cache(load_api)


@dataclass(frozen=True)
class Case:
    """One message in one version, with the four functions that concern it."""

    api_key: int
    api_name: str
    version: int
    direction: str

    def __str__(self) -> str:
        return f"{self.api_name}-{self.direction}-v{self.version}"

    @property
    def struct(self) -> Struct:
        schema = cached_load_api(self.api_name)
        return schema.request if self.direction == "request" else schema.response

    @property
    def flexible(self) -> bool:
        return APIS[self.api_key].is_flexible(self.version)

    def encode(self, message: Message) -> bytes:
        encoders = {"request": codec.request_encoder, "response": codec.response_encoder}
        return b"".join(encoders[self.direction](self.api_key, self.version)(message))  # type: ignore[arg-type]

    def decode(self, data: bytes, position: int = 0) -> Message:
        decoders = {"request": codec.request_decoder, "response": codec.response_decoder}
        return decoders[self.direction](self.api_key, self.version)(memoryview(data), position)


CASES = [
    Case(api.key, api.name, version, direction)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    for direction in ("request", "response")
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=str)


def messages(struct: Struct, version: int) -> st.SearchStrategy[Message]:
    """Any message of this version. Fields that the version lacks keep their defaults.

    Error codes and 64-bit times stay within what the oracle can represent.
    """
    fields = {field.name: _values(field, version) for field in struct.fields if version in field.versions}
    made = st.builds(getattr(generated, struct.name), **fields)
    return made.filter(lambda message: message != getattr(generated, struct.name)()) if fields else made


def _values(field: Field, version: int) -> st.SearchStrategy[object]:
    one = _single_values(field, version)
    values = st.lists(one, max_size=3) if field.is_array else one
    # A tagged struct that is absent is None, whether or not null can be written.
    if field.is_nullable(version) or (field.tag is not None and field.struct is not None and not field.is_array):
        return st.none() | values
    return values


# What kio has as dates and durations, which hold less than 64 bits.
TIMES = (
    *("transaction_start_time_ms", "issue_timestamp_ms", "expiry_timestamp_ms", "max_timestamp_ms"),
    *("max_lifetime_ms", "renew_period_ms", "expiry_time_period_ms"),
)


def _single_values(field: Field, version: int) -> st.SearchStrategy[object]:
    if field.struct is not None:
        return messages(field.struct, version)
    if field.name.endswith("error_code"):
        return st.sampled_from([code.value for code in ErrorCode])
    if field.name in ("log_append_time_ms", "retention_time_ms"):
        return st.just(-1) | st.integers(0, YEAR_2100_MS)
    if field.name in TIMES:
        return st.integers(0, YEAR_2100_MS)
    if field.name == "port" and field.type == "int16":
        return st.integers(0, (1 << 15) - 1)  # of the unsigned numbers that Kafka has here, those without a sign
    if field.type in INTEGER_BITS:
        bound = 1 << (INTEGER_BITS[field.type] - 1)
        return st.integers(-bound, bound - 1)
    strategies: dict[str, st.SearchStrategy[object]] = {
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.binary(min_size=16, max_size=16),
        "string": st.text(max_size=6) | st.just("x" * 200),
        "bytes": st.binary(max_size=20),
        "records": st.binary(max_size=20) | st.just(bytes(20_000)),
    }
    return strategies[field.type]


@pytest.fixture(scope="session")
def messages_of() -> Callable[[Case], st.SearchStrategy[Message]]:
    return cache(lambda case: messages(case.struct, case.version))
