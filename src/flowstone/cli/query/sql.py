"""`flowstone sql`: runs SQL queries over topics with DuckDB, an optional dependency.

A topic is a table of the same name, which is read only when the query scans it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_S, Bootstrap, connect, fetch_metadata
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, encode
from flowstone.cli.common.json_values import plain_value
from flowstone.cli.common.numbers import OFFSET_MAX, parse_whole
from flowstone.cli.common.text import screen_width, table

CLIENT_ID = "flowstone-cli"
_PLACES = ("earliest", "latest")
_MISSING_TABLE = re.compile(r"Table with name (\S+) does not exist")


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL; a topic is a table.")],
    start: Annotated[
        str, typer.Option(metavar="PLACE", help="Where to start: earliest, latest, an offset, or a time (ISO 8601).")
    ] = "earliest",
    end: Annotated[str, typer.Option(metavar="PLACE", help="Where to stop, in the same format.")] = "latest",
    binary: Annotated[bool, typer.Option("--binary", help="Return keys and values as BLOB instead of text.")] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Omit records of aborted and open transactions.")
    ] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a query over topics, such as select value->>'country', count(*) from orders group by all."""
    try:
        import duckdb

        from flowstone.cli.query.topic_views import TopicView
    except ImportError:
        raise CommandError("flowstone sql needs DuckDB and pyarrow: run `pip install 'flowstone[sql]'`") from None
    from flowstone.client import Cluster

    places = _place("--start", start), _place("--end", end)
    topics = fetch_metadata(connect(bootstrap), bootstrap).topics
    new_cluster = partial(Cluster, bootstrap, client_id=CLIENT_ID, deadline_s=REQUEST_TIMEOUT_S)
    with closing(duckdb.connect(":memory:")) as database:
        # Only the engine knows which tables the query uses; an unused view costs nothing.
        named = [topic for topic in topics if topic.lower() in query.lower()]
        views = [
            TopicView(new_cluster, topic, *places, binary=binary, read_committed=read_committed) for topic in named
        ]
        try:
            for topic, view in zip(named, views, strict=True):
                database.register(topic, view)
            for text in _answer(database, query, json_output=json_output):
                print(text)
        except duckdb.Error as error:
            failure = next((view.failure for view in views if view.failure is not None), None)
            raise CommandError(str(failure or _explain(error, topics))) from None


def _explain(error: Exception, topics: Iterable[str]) -> str:
    """Return the first line of DuckDB's error, with our own hint for a missing table: DuckDB suggests internal ones."""
    missing = _MISSING_TABLE.search(str(error))
    if missing is None:
        return f"DuckDB: {str(error).splitlines()[0]}"
    from flowstone.config import nearest

    return f"there is no topic {missing[1]}{nearest(missing[1], topics) or '; see `flowstone topic list`'}"


def _place(option: str, text: str) -> str | int | datetime:
    if text in _PLACES:
        return text
    if text.isdecimal():
        return parse_whole(option, text, OFFSET_MAX, "an offset")
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(
            f"{option} {text}: expected earliest, latest, an offset, or a time such as 2026-01-31T12:00:00+00:00"
        ) from None


def _answer(database: Any, query: str, *, json_output: bool) -> Iterator[str]:
    """Yield what to print: a document per row, or one table; nothing for a statement without rows."""
    import pyarrow as pa

    relation = database.sql(query)
    if relation is None:
        return
    names = relation.columns
    batches = pa.RecordBatchReader.from_stream(relation)
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    if json_output:
        for row in rows:
            yield encode({name: plain_value(value) for name, value in zip(names, row, strict=True)})
    else:
        yield table(names, [[_cell(value) for value in row] for row in rows], screen_width())


def _cell(value: Any) -> str:
    """Return a value as text without line breaks, for a table cell."""
    if value is None:
        return ""
    plain = plain_value(value)
    text = plain if isinstance(plain, str) else encode(plain)
    return text.replace("\n", " ")
