"""A PySpark that is too old, as the commands of pipelines meet it."""

from __future__ import annotations

import sys

import pyspark
import pytest

from flowstone.cli.common.errors import CommandError
from flowstone.cli.pipeline.common import load_model


def test_pipelines_say_what_to_do_on_a_pyspark_that_is_too_old(monkeypatch, tmp_path):
    pytest.importorskip("yaml", reason="pipelines are not installed here")
    monkeypatch.setattr(pyspark, "__version__", "3.5.8")
    monkeypatch.delitem(sys.modules, "pyspark_flowstone.versions", raising=False)
    with pytest.raises(CommandError, match=r"needs PySpark 4\.0 or newer, and this is 3\.5\.8: install"):
        load_model(tmp_path)
