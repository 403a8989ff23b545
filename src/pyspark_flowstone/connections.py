"""The client of a broker, kept for as long as its process lives.

Spark keeps its Python workers, so a later task of the same worker finds the connections of an earlier one. A task that
breaks off in the middle of something, as the tasks of a query with a limit do, costs the client that one connection.
"""

from __future__ import annotations

import os

from flowstone.client import Cluster

CLIENT_ID = "flowstone-spark"

# By process: a fork must not use the sockets of its parent.
_clusters: dict[tuple[int, str], Cluster] = {}


def cluster_of(bootstrap: str) -> Cluster:
    """The process's one client of this cluster. Python workers run one task at a time, in one thread."""
    key = os.getpid(), bootstrap
    if key not in _clusters:
        _clusters[key] = Cluster(bootstrap, client_id=CLIENT_ID)
    return _clusters[key]
