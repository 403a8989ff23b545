"""`plan`: shows what changed since the last run, the effect on rows, and which checkpoints can be continued.

Pure: two declarations in, sentences out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flowstone.pipeline.engine.declaring import CHECKPOINT_SETTINGS, MODULES
from flowstone.pipeline.state import Declaration, DeclaredNode

# The parts of sources and sinks that say where records are.
PLACES = {"topics", "pattern", "topic", "path", "kind", "class"}
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
CONTINUES, NEW, CANNOT, UNSURE, GONE = "continues", "new", "cannot continue", "may not continue", "not run any more"


@dataclass(frozen=True)
class NodeChange:
    node: str
    kind: str
    change: str
    parts: tuple[str, ...]
    consequence: str


@dataclass(frozen=True)
class QueryPlan:
    query: str
    checkpoint: str  # one of the words above
    reason: str


@dataclass(frozen=True)
class Plan:
    is_first: bool
    nodes: tuple[NodeChange, ...]
    queries: tuple[QueryPlan, ...]

    @property
    def can_continue(self) -> bool:
        return all(each.checkpoint != CANNOT for each in self.queries)


def plan(old: Declaration | None, new: Declaration) -> Plan:
    """Return what changes if a pipeline that last ran as `old` is run as `new`."""
    if old is None:
        queries = tuple(QueryPlan(name, NEW, "the pipeline has not run before") for name in new.queries)
        return Plan(True, (), queries)
    changes = tuple(_node_changes(old, new))
    return Plan(False, changes, tuple(_queries(old, new, {each.node: each for each in changes})))


def _node_changes(old: Declaration, new: Declaration) -> Iterator[NodeChange]:
    for name in sorted({*old.nodes, *new.nodes}, key=lambda each: (each not in new.nodes, each)):
        before, after = old.nodes.get(name), new.nodes.get(name)
        if before is None and after is not None:
            yield NodeChange(name, after.kind, ADDED, (), _added(after, new, name))
        elif after is None and before is not None:
            yield NodeChange(name, before.kind, REMOVED, (), _removed(before))
        elif before is not None and after is not None and before != after:
            parts = _parts(before, after)
            yield NodeChange(name, after.kind, CHANGED, parts, _changed(name, after, parts, new))


def _parts(before: DeclaredNode, after: DeclaredNode) -> tuple[str, ...]:
    inputs = ("inputs",) if before.inputs != after.inputs else ()
    named = sorted({*before.parts, *after.parts})
    return (*inputs, *(each for each in named if before.parts.get(each) != after.parts.get(each)))


def _added(node: DeclaredNode, new: Declaration, name: str) -> str:
    if node.kind == "sink":
        return "it gets rows from the next micro-batch on; `backfill` computes the earlier ones of a table"
    return _downstream(name, new) if node.kind == "step" else "it is read from where it is declared to start"


def _removed(node: DeclaredNode) -> str:
    return "what it has stays, and nothing is added" if node.kind == "sink" else "it is not used any more"


def _changed(name: str, node: DeclaredNode, parts: tuple[str, ...], new: Declaration) -> str:
    if node.kind == "sink":
        moved = PLACES & set(parts)
        return "rows go there from the next micro-batch on; the old place keeps its rows" if moved else (
            "rows are written so from the next micro-batch on"
        )  # fmt: skip
    if node.kind == "modules":
        return "the steps that use them may compute other rows: `diff` shows which"
    if node.kind == "source" and set(parts) == {"starting"}:
        return "nothing: where the pipeline started is stored; `reset` moves it"
    return _downstream(name, new)


def _downstream(name: str, new: Declaration) -> str:
    """Return what a changed node does to the sinks behind it."""
    reached, sinks = {name}, []
    grew = True
    while grew:
        behind = {each for each, node in new.nodes.items() if reached & set(node.inputs)} - reached
        reached |= behind
        grew = bool(behind)
    sinks = sorted(each for each in reached if new.nodes[each].kind == "sink")
    if not sinks:
        return "no sink depends on it"
    return (
        f"rows of {', '.join(sinks)} are computed so from the next micro-batch on; the earlier ones stay: "
        "`diff` shows the difference, `backfill` computes tables anew"
    )


def _queries(old: Declaration, new: Declaration, changes: Mapping[str, NodeChange]) -> Iterator[QueryPlan]:
    for name, query in new.queries.items():
        before = old.queries.get(name)
        if before is None:
            yield QueryPlan(name, NEW, "it has no checkpoint, and starts where its sources are declared to start")
            continue
        if sorted(before.sources) != sorted(query.sources):
            yield QueryPlan(
                name, CANNOT, "it reads other sources, and Spark's checkpoint is for those of before: reset it"
            )
            continue
        if before.sources != query.sources:
            yield QueryPlan(
                name, CANNOT, "its sources are in another order, which Spark's checkpoint goes by: reset it"
            )
            continue
        moved = [each for each in query.sources if each in changes and PLACES & set(changes[each].parts)]
        if moved:
            yield QueryPlan(name, CANNOT, f"the source {moved[0]} reads another place than its checkpoint: reset it")
            continue
        yield _stateful(name, before.stateful, query.stateful, old, new, changes)
    for name in old.queries:
        if name not in new.queries:
            yield QueryPlan(name, GONE, "its checkpoint stays, and is used if the query comes back")


def _stateful(
    name: str,
    before: tuple[str, ...],
    after: tuple[str, ...],
    old: Declaration,
    new: Declaration,
    changes: Mapping[str, NodeChange],
) -> QueryPlan:
    """Return whether the state of a query fits its new steps."""
    if before != after:
        return QueryPlan(name, CANNOT, "the steps that its state depends on are others: reset it")
    touched = [each for each in after if each in changes and {"code", "inputs"} & set(changes[each].parts)]
    touched += [MODULES] if after and MODULES in changes else []
    if touched:
        return QueryPlan(
            name,
            UNSURE,
            f"{touched[0]} changed, which its state was computed with: Spark refuses it if keys or types changed, and "
            "otherwise goes on with the old state; reset it to compute all anew",
        )
    settings = [each for each in CHECKPOINT_SETTINGS if old.settings.get(each) != new.settings.get(each)]
    if after and settings:
        return QueryPlan(name, CONTINUES, f"{settings[0]} changed, but its state keeps the value of before")
    return QueryPlan(name, CONTINUES, "")
