"""The state of pipelines on the broker: runs, start positions, declared versions, errors and counters.

`StateStore` is the entry point. Everything is in one compacted topic, so that all machines see the same.
"""

from __future__ import annotations

from flowstone.pipeline.state.records import (
    Checkpoint,
    Declaration,
    DeclaredNode,
    DeclaredQuery,
    ErrorRecord,
    Kind,
    Lease,
    LettersRecord,
    Point,
    Positions,
    Progress,
    ReplayRecord,
    RunRecord,
)
from flowstone.pipeline.state.run import Run
from flowstone.pipeline.state.store import StateStore, new_checkpoint
from flowstone.pipeline.state.topic import STATE_TOPIC
from flowstone.pipeline.state.view import PipelineState

__all__ = [
    "STATE_TOPIC",
    "Checkpoint",
    "Declaration",
    "DeclaredNode",
    "DeclaredQuery",
    "ErrorRecord",
    "Kind",
    "Lease",
    "LettersRecord",
    "PipelineState",
    "Point",
    "Positions",
    "Progress",
    "ReplayRecord",
    "Run",
    "RunRecord",
    "StateStore",
    "new_checkpoint",
]
