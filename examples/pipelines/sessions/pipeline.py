"""Sessions: the clicks of a visitor until there is none for ten minutes, as one row.

A session is written once no click can belong to it any more: ten minutes after its last click, and another minute for
clicks that come late.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from flowstone.pipeline import Pipeline, delta, json, topic

pipeline = Pipeline("sessions")
pipeline.source("clicks", topic("clicks", value=json("visitor string, page string, at timestamp")))


@pipeline.step
def sessions(clicks: DataFrame) -> DataFrame:
    grouped = clicks.withWatermark("at", "1 minute").groupBy("visitor", F.session_window("at", "10 minutes").alias("s"))
    counted = grouped.agg(F.count("*").alias("clicks"), F.min_by("page", "at").alias("entered_at_page"))
    return counted.selectExpr("visitor", "s.start AS started", "clicks", "entered_at_page")


pipeline.sink("table", sessions, delta("lake/sessions"))

pipeline.case(
    "a pause of ten minutes ends a session",
    given={
        "clicks": [
            {"visitor": "v1", "page": "/", "at": "2026-11-01T10:00:00Z"},
            {"visitor": "v1", "page": "/cart", "at": "2026-11-01T10:09:00Z"},
            {"visitor": "v1", "page": "/help", "at": "2026-11-01T10:30:00Z"},
        ]
    },
    expected={
        "sessions": [
            {"visitor": "v1", "clicks": 2, "entered_at_page": "/"},
            {"visitor": "v1", "clicks": 1, "entered_at_page": "/help"},
        ]
    },
)
