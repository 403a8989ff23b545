"""One case of the ecosystem suite, so that the suite itself is known to work; `make ecosystem` runs all."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.servers import Flowstone

from .cases import PRODUCTS
from .run import main, run


@pytest.mark.timeout(300)  # the first run installs the product
def test_a_faststream_service_loses_nothing_when_its_worker_and_the_broker_are_killed(tmp_path: Path) -> None:
    result = run(PRODUCTS["faststream-aiokafka"], Flowstone, tmp_path)
    assert (result.failure, len(result.checks)) == (None, 1)


def test_an_unknown_product_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["kafka-stream"])
    assert "no such product: kafka-stream; there are kafka-go, " in capsys.readouterr().err
