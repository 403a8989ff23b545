"""`flowstone pipeline` in this process, with the Spark session of the tests."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from importlib import import_module
from operator import attrgetter
from tempfile import TemporaryFile
from typing import Any

import pytest

from flowstone.cli.commands import build_app
from flowstone.errors import FlowstoneError
from tests.spark_pipeline.shop import Shop

SESSION = "flowstone.pipeline.engine.session.open_session"
OF_THE_PROCESS = ("flowstone.client.security._default", "flowstone.cli.common.connection_options._file")


def command(shop: Shop, *arguments: str, status: int = 0) -> str:
    """Run `flowstone pipeline <arguments>` and return what it printed. An error of a command is raised."""
    with pytest.MonkeyPatch.context() as patch, TemporaryFile("w+") as printed, redirect_stdout(printed):
        patch.setattr(SESSION, lambda *args, **more: shop.spark)
        for name in OF_THE_PROCESS:  # what --config changes is put back after the command
            patch.setattr(name, attrgetter(name.rpartition(".")[2])(import_module(name.rpartition(".")[0])))
        exit_status = build_app("pipeline")(["pipeline", *arguments], standalone_mode=False)
        printed.seek(0)
        text = printed.read()
    assert (exit_status or 0) == status, text
    return text


def document(shop: Shop, *arguments: str, status: int = 0) -> Any:
    """Return what a command prints with --json."""
    return json.loads(command(shop, *arguments, "--json", status=status))


def refusal(shop: Shop, *arguments: str) -> str:
    """Return the message of a command that fails."""
    with pytest.raises(FlowstoneError) as caught:
        command(shop, *arguments)
    return str(caught.value)
