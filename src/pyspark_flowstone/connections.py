"""What a process of Spark's keeps for as long as it lives: the client of a broker, and memory for columns.

Spark keeps its Python workers, so a later task of the same worker finds the connections of an earlier one. A task that
breaks off in the middle of something, as the tasks of a query with a limit do, costs the client that one connection.
"""

from __future__ import annotations

import gc
import os

from flowstone.arrow.memory import Memory
from flowstone.client import Cluster

CLIENT_ID = "flowstone-spark"

# By process: a fork must not use the sockets of its parent.
_clusters: dict[tuple[int, str], Cluster] = {}
_memory = Memory()
_is_settled = False


def cluster_of(bootstrap: str) -> Cluster:
    """The process's one client of this cluster. Python workers run one task at a time, in one thread."""
    key = os.getpid(), bootstrap
    if key not in _clusters:
        settle_process()
        _clusters[key] = Cluster(bootstrap, client_id=CLIENT_ID)
    return _clusters[key]


def column_memory() -> Memory:
    """The process's one, for its one thread of tasks."""
    return _memory


def settle_process() -> None:
    """To be called when what a process needs is imported.

    Spark collects garbage after whatever it has asked of a process. That walks all that Spark, Arrow and we have
    imported, 20 ms each time, which is more than a small task takes. None of it is ever garbage: it is left out.
    """
    global _is_settled  # the number of frozen objects would tell as well, but counting them takes 4 ms
    if not _is_settled:
        gc.collect()
        gc.freeze()
        _is_settled = True
