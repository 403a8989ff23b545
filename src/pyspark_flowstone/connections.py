"""The client of a cluster and the buffer pool that a Spark process keeps for its whole life.

Spark reuses its Python workers, so a later task of a worker reuses the connections of earlier ones. A task that stops
halfway, as in a query with a limit, costs only the one connection that it was using.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flowstone.arrow.memory import Memory
from flowstone.client import Cluster

CLIENT_ID = "flowstone-spark"

# By process id: a forked process must not use its parent's sockets.
_clusters: dict[tuple[int, str], Cluster] = {}
_memory = Memory()
_is_settled = False


class _Own(threading.local):
    """A thread's own client, while it has one."""

    bootstrap = ""
    cluster: Cluster | None = None


_own = _Own()


@contextmanager
def own_cluster(bootstrap: str) -> Iterator[None]:
    """Let `cluster_of` return a client per thread, for programs with several threads, such as a driver."""
    with Cluster(bootstrap, client_id=CLIENT_ID) as cluster:
        _own.bootstrap, _own.cluster = bootstrap, cluster
        try:
            yield
        finally:
            _own.cluster = None


def cluster_of(bootstrap: str) -> Cluster:
    """Return this process's client of the cluster. Python workers run one task at a time, in one thread."""
    if _own.cluster is not None and _own.bootstrap == bootstrap:
        return _own.cluster
    key = os.getpid(), bootstrap
    if key not in _clusters:
        settle_process()
        _clusters[key] = Cluster(bootstrap, client_id=CLIENT_ID)
    return _clusters[key]


def column_memory() -> Memory:
    """Return this process's buffer pool, for its single task thread."""
    return _memory


def settle_process() -> None:
    """Exclude all imported objects from garbage collection; to be called when all imports are done.

    Spark collects garbage after each call to a process. That walks everything that Spark, Arrow and this package have
    imported, 20 ms each time, more than a small task takes. None of it ever becomes garbage.
    """
    global _is_settled  # counting the frozen objects instead would take 4 ms
    if not _is_settled:
        gc.collect()
        gc.freeze()
        _is_settled = True
