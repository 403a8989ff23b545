"""The claim of a command that works beside a run: of its kind one at a time for each pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowstone.pipeline.model import PipelineModel
from flowstone.pipeline.state import StateStore


@contextmanager
def beside_run(model: PipelineModel, purpose: str) -> Iterator[StateStore]:
    """Yield the pipeline's store. The first word of the purpose says which commands exclude each other.

    Raises TryLater if another process has the claim.
    """
    claims = StateStore(model.bootstrap, f"{model.name}/{purpose.partition(' ')[0]}")
    with claims, StateStore(model.bootstrap, model.name) as store:
        claim = claims.begin_run(None, purpose=purpose)
        try:
            yield store
        finally:
            claim.end(purpose)


@contextmanager
def instead_of_run(model: PipelineModel, purpose: str) -> Iterator[StateStore]:
    """Yield the pipeline's store while it cannot run. Raises TryLater if it is running."""
    with StateStore(model.bootstrap, model.name) as store:
        claim = store.begin_run(model.directory, purpose=purpose)
        try:
            yield store
        finally:
            claim.end(purpose)
