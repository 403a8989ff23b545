"""What Spark's Python processes import: several are started before the first micro-batch of a query."""

from __future__ import annotations

import subprocess
import sys

LISTED = "import sys, pyspark_flowstone.stream, pyspark_flowstone.exactly_once_sink; print(*sys.modules)"


def test_a_reader_and_a_writer_import_nothing_of_the_broker() -> None:
    done = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True)
    imported = {".".join(name.split(".")[:2]) for name in done.stdout.split() if name.startswith("flowstone.")}
    assert imported & {"flowstone.broker", "flowstone.config", "flowstone.log", "flowstone.cluster"} == set()
    assert "flowstone.client" in imported
