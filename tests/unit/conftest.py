from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowstone.client.security import default_security


@pytest.fixture(autouse=True)
def _default_security_is_unchanged() -> Iterator[None]:
    """Fail the test that leaves the process with another security, not those that connect after it."""
    before = default_security()
    yield
    assert default_security() is before
