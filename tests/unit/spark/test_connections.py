"""What a worker process keeps: one client of each cluster, one memory, and no long walks through its modules."""

from __future__ import annotations

import subprocess
import sys

from pyspark_flowstone.connections import cluster_of, column_memory

SETTLED = """
import gc
from pyspark_flowstone.connections import cluster_of
cluster_of("127.0.0.1:9")
print(len(gc.get_objects()), gc.get_freeze_count())
"""


def test_a_process_has_one_client_of_a_cluster_and_one_memory() -> None:
    assert cluster_of("127.0.0.1:9") is cluster_of("127.0.0.1:9")
    assert column_memory() is column_memory()


def test_garbage_collection_after_a_task_leaves_out_what_was_imported() -> None:
    """In a process of its own, as a worker is: freezing cannot be undone for a part."""
    printed = subprocess.run([sys.executable, "-c", SETTLED], check=True, capture_output=True, text=True).stdout
    walked, frozen = map(int, printed.split())
    assert walked < frozen / 10
