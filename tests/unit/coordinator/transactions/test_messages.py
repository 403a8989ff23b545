"""What older versions of the APIs are told instead of error codes that they do not know."""

from __future__ import annotations

import pytest

from flowstone.coordinator.transactions.messages import error_for_version
from flowstone.errors import ErrorCode


@pytest.mark.parametrize(("api_key", "first_version"), [(22, 4), (24, 2), (25, 2), (26, 2)])
def test_clients_that_do_not_know_producer_fenced_are_told_invalid_producer_epoch(
    api_key: int, first_version: int
) -> None:
    fenced = ErrorCode.PRODUCER_FENCED
    assert error_for_version(api_key, first_version - 1, fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert error_for_version(api_key, first_version, fenced) is fenced


def test_other_error_codes_are_the_same_in_every_version() -> None:
    assert error_for_version(22, 0, ErrorCode.CONCURRENT_TRANSACTIONS) is ErrorCode.CONCURRENT_TRANSACTIONS
