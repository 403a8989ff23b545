"""Retries of dead letters: through the pipeline as it is now, or back into the topics that they come from.

Through the pipeline a letter is decoded and evaluated like the record that it was, and what comes of it is written to
the sinks; if it fails again, it becomes a new letter with the new cause. A step that keeps state needs its records from
the stream, so those letters are written back to their topics.

A retry is exactly once: its number and letters are stored before anything is written, and the transaction carries the
number. If the command dies, the next one finishes that retry first, and what was written is not written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flowstone.pipeline import formats
from flowstone.pipeline.connecting import spark_options
from flowstone.pipeline.engine import letters as headers_of
from flowstone.pipeline.engine.evaluation import Evaluation
from flowstone.pipeline.engine.letters import COLUMNS, EMPTY_HEADERS
from flowstone.pipeline.engine.outputs import MicroBatchId, write_all, write_records
from flowstone.pipeline.engine.queries import Query, plan_queries
from flowstone.pipeline.engine.sources import Range, is_stream, read_batch
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import RECORD, PipelineModel, Source, TopicSource
from flowstone.pipeline.operations.letters import offset_sets
from flowstone.pipeline.operations.letters.reading import Letter, record_of, store_record
from flowstone.pipeline.state import LettersRecord, StateStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# How often a letter was retried, in a header of the record.
RETRIES = "flowstone.retries"


@dataclass(frozen=True)
class Retried:
    """The result of a retry. `letters_again` failed again; a letter without an origin cannot be retried."""

    letters: int
    rows_out: dict[str, int]
    letters_again: int
    without_origin: int = 0


def retry(
    spark: SparkSession, model: PipelineModel, store: StateStore, letters: Sequence[Letter], *, to_source: bool
) -> Retried:
    """Retry letters, after finishing a retry that was interrupted. Raises PipelineError if that cannot be done."""
    record = record_of(model, store)
    if record.pending:
        record = _finish(spark, model, store, record)[0]
    usable = [each for each in letters if each.origin and not _is_in(record, each)]
    pending = offset_sets.of((each.partition, each.offset) for each in usable)
    if not pending:
        return Retried(0, {}, 0, sum(not each.origin for each in letters))
    queries = plan_queries(spark, model)
    if not to_source:
        _refuse_unreachable(model, queries, usable)
    record = replace(record, retries=record.retries + 1, pending=pending, to_source=to_source)
    store_record(store, record)
    _, done = _finish(spark, model, store, record)
    return replace(done, without_origin=len(letters) - len(usable))


def _is_in(record: LettersRecord, letter: Letter) -> bool:
    return offset_sets.contains(record.retried, letter.partition, letter.offset)


def _finish(
    spark: SparkSession, model: PipelineModel, store: StateStore, record: LettersRecord
) -> tuple[LettersRecord, Retried]:
    """Write what comes of the pending letters, which may have been done before, and mark them."""
    rows = _letters(spark, model, record).persist()
    try:
        done = _write_back(model, rows, record) if record.to_source else _evaluate(spark, model, rows, record)
    finally:
        rows.unpersist()
    after = replace(record, pending={}, retried=offset_sets.union(record.retried, record.pending))
    return store_record(store, after), replace(done, letters=offset_sets.count(record.pending))


def _batch(name: str, model: PipelineModel, record: LettersRecord) -> MicroBatchId:
    return MicroBatchId(f"{name}.letters", f"{name}.letters", record.retries, {})


def _letters(spark: SparkSession, model: PipelineModel, record: LettersRecord) -> DataFrame:
    """Return the pending letters as the records that they were, in the column RECORD."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    ends = {int(number): (ranges[0][0], ranges[-1][1] + 1) for number, ranges in record.pending.items()}
    starting, ending = ({record.topic: {str(number): each[n] for number, each in ends.items()}} for n in (0, 1))
    assignment = {record.topic: sorted(ends)}
    options = {
        **spark_options(model),
        "assign": json.dumps(assignment),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
        "includeHeaders": "true",
        "isolation.level": "read_committed",
    }
    rows = spark.read.format("flowstone").options(**options).load()
    wanted = spark.createDataFrame(
        [(int(number), first, last) for number, ranges in record.pending.items() for first, last in ranges],
        "number int, first bigint, last bigint",
    )
    here = (rows["partition"] == wanted["number"]) & rows["offset"].between(wanted["first"], wanted["last"])
    rows = rows.join(F.broadcast(wanted), here).drop("number", "first", "last")
    retries = F.coalesce(_header(RETRIES).cast("int"), F.lit(0)) + 1
    counted = F.struct(F.lit(RETRIES).alias("key"), retries.cast("string").cast("binary").alias("value"))
    own = F.filter("headers", lambda each: ~each["key"].startswith(headers_of.PREFIX) & (each["key"] != RETRIES))
    whole = F.struct(
        _header(headers_of.TOPIC).alias("topic"),
        _header(headers_of.PARTITION).cast("int").alias("partition"),
        _header(headers_of.OFFSET).cast("bigint").alias("offset"),
        F.col("timestamp"),
        F.col("key"),
        F.col("value"),
        F.concat(F.coalesce(own, F.expr(EMPTY_HEADERS)), F.array(counted)).alias("headers"),
    )
    return rows.select(whole.alias(RECORD))


def _header(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    return F.try_element_at(F.filter("headers", lambda each: each["key"] == name), F.lit(-1))["value"].cast("string")


def _evaluate(spark: SparkSession, model: PipelineModel, rows: DataFrame, record: LettersRecord) -> Retried:
    """Run the letters through the queries of their sources."""
    rows_out: dict[str, int] = {}
    again = 0
    for query in plan_queries(spark, model):
        source = model.source(query.root)
        if source is None or not isinstance(source.origin, TopicSource):
            continue
        mine = rows.where(_is_of(source.origin))
        evaluation = _evaluation(spark, model, query, source, mine)
        outputs = {each.name: evaluation.frames[each.input] for each in query.sinks}
        counts = evaluation.count(outputs)
        write_all(model, query, evaluation, counts, _batch(query.name, model, record))
        for each in outputs:
            rows_out[each] = rows_out.get(each, 0) + counts.rows.get(each, 0)
        again += counts.letters
    return Retried(0, rows_out, again)


def _evaluation(
    spark: SparkSession, model: PipelineModel, query: Query, source: Source, records: DataFrame
) -> Evaluation:
    assert isinstance(source.origin, TopicSource)
    evaluation = Evaluation(model)
    for each in model.sources:
        if not is_stream(each):
            evaluation.add_source(each.name, read_batch(spark, model, each, Range()))
    subject = formats.subject_of(*source.origin.topics)
    evaluation.add_source(source.name, formats.decode(records, source.origin.value, spark, subject))
    evaluation.add_absent(spark, query.absent)
    evaluation.add_steps(spark, query.steps)
    return evaluation


def _is_of(origin: TopicSource) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    topic = F.col(RECORD)["topic"]
    return topic.rlike(f"^(?:{origin.pattern})$") if origin.pattern else topic.isin(*origin.topics)


def _write_back(model: PipelineModel, rows: DataFrame, record: LettersRecord) -> Retried:
    """Write the letters to their topics as new records, with the number of retries in a header."""
    from pyspark_flowstone.placement import Part

    topics = sorted(each[0] for each in rows.select(f"{RECORD}.topic").distinct().collect())
    named = rows.select(*(f"{RECORD}.{each}" for each in COLUMNS))
    parts = [Part(topic, named.where(named["topic"] == topic)) for topic in topics]
    write_records(model, parts, _batch(model.name, model, record))
    return Retried(0, {}, 0)


def _refuse_unreachable(model: PipelineModel, queries: Sequence[Query], letters: Sequence[Letter]) -> None:
    """Raise PipelineError if a letter's source feeds a step that keeps state, or no source reads its topic."""
    roots = {query.root for query in queries}
    for topic in sorted({each.cause["topic"] for each in letters}):
        sources = [each for each in model.sources if _reads(each, topic)]
        if not sources:
            raise PipelineError(
                f"no source of the pipeline reads the topic {topic} any more; write its letters back with --to-source"
            )
        names = {each.name for each in sources}
        kept = [each.root for each in queries if each.root not in names and names & {one.name for one in each.sources}]
        if kept or not roots & names:
            raise PipelineError(
                f"the step {(kept or ['?'])[0]} keeps state over the records of {topic}, which a retry beside the run "
                "cannot change; write the letters back to their topic with --to-source"
            )


def _reads(source: Source, topic: str) -> bool:
    origin = source.origin
    if not isinstance(origin, TopicSource):
        return False
    return re.fullmatch(origin.pattern, topic) is not None if origin.pattern else topic in origin.topics
