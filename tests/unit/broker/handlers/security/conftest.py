"""A broker with delegation tokens and an authorizer, for all modules of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.running_app import RunningApp
from tests.support.security.tokens import app_with_tokens


@pytest.fixture(scope="package")
def token_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    authorizer = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:admin"}
    with app_with_tokens(tmp_path_factory.mktemp("tokens"), **authorizer) as app:
        yield app
