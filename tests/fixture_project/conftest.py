"""This is a project of its own: its tests are run by `make fixture`, and not as part of the repository's."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if config.rootpath != Path(__file__).parent else None
