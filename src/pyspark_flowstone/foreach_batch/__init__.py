"""`to_topic(...)`: the sink as a function for `foreachBatch`, which Spark runs in every output mode.

Spark offers a Python sink no update mode, so `format("flowstone")` cannot write an aggregation's changed rows. A
function given to `foreachBatch` gets them. This one writes them with the batch sink: same options, columns, errors and
delivery. With `delivery=exactly-once` each micro-batch is one transaction, numbered by the query's id and the
micro-batch's: what was committed before is not written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from pyspark_flowstone.kafka_options import CONNECT_TIMEOUT
from pyspark_flowstone.placement import exactly_once
from pyspark_flowstone.reporting import EXPECTED, QueryError
from pyspark_flowstone.sink_options import APP_ID, VERSION, parse_sink_options
from pyspark_flowstone.values import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESTART_TIMEOUT = "60s"  # a query that has run for long is to survive the restart of a broker, as with the sink
QUERY_ID = "sql.streaming.queryId"  # a property of the thread in which Spark runs a query


@dataclass(frozen=True)
class TopicBatches:
    """A function for `foreachBatch` that writes each micro-batch to a topic, or to several."""

    options: Mapping[str, str]
    topics: Sequence[str]  # of an exactly-once sink

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        options = dict(self.options)
        if self.topics:
            try:
                if not any(name.lower() == APP_ID.lower() for name in options):
                    options[APP_ID] = _query_id(rows)
                options[VERSION] = str(batch_id)
                parsed = parse_sink_options(options)
                rows = exactly_once(
                    rows,
                    bootstrap=parsed.bootstrap,
                    topic=parsed.topic or self.topics,
                    connect_timeout_s=parsed.connect_timeout_s,
                )
            except EXPECTED as error:
                raise QueryError(str(error)) from None
        rows.write.format("flowstone").options(**options).mode("append").save()


def to_topic(options: Mapping[str, object], *, topics: Sequence[str] = ()) -> TopicBatches:
    """Return the function; `options` are those of `writeStream.format("flowstone")`.

    `topics` are all topics that rows name in their column `topic`: an exactly-once sink without the option `topic`
    needs them. Raises OptionError if an option is invalid; what only a broker or the rows can tell fails the query.
    """
    given = {name: _text(value) for name, value in options.items()}
    named = {name.lower() for name in given}
    if CONNECT_TIMEOUT.lower() not in named:
        given[CONNECT_TIMEOUT] = RESTART_TIMEOUT
    if VERSION.lower() in named:
        raise OptionError(f"{VERSION}: it is the number of the micro-batch here; leave it out")
    parsed = parse_sink_options({**given, VERSION: "0"} if APP_ID.lower() in named else given)
    if not parsed.is_exactly_once:
        if topics:
            raise OptionError("topics: only an exactly-once sink needs them")
        return TopicBatches(given, ())
    if parsed.topic is None and not topics:
        raise OptionError("topics: an exactly-once sink needs the option topic, or here all topics that rows name")
    if parsed.topic is not None and topics:
        raise OptionError("topics: all rows go to the one that the option topic names; leave one of them out")
    return TopicBatches(given, tuple(topics) or (str(parsed.topic),))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _query_id(rows: DataFrame) -> str:
    """Return the id of the query whose micro-batch this is. Raises OptionError where Spark does not tell it."""
    try:
        query_id = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except PySparkException:  # a session of Spark Connect has no context
        query_id = None
    if not query_id:
        raise OptionError(
            f"{APP_ID}: Spark does not tell the query's id here; give this option a name that no other query has, and "
            "another one whenever the query gets a new checkpoint"
        )
    return str(query_id)
