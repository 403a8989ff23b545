"""Downloads Spark's own Kafka connector from Maven Central into the cache folder, to run it next to ours.

Owns the list of its jars: `connector_jars()` is the value for `spark.jars`. Each jar is downloaded without its
dependencies, because the others are part of PySpark; the connector's parent names a mirror that may not exist.

Invariant, as in `fetch_kafka`: the folder is renamed into place after every jar is in it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = str(Path(__file__).parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.fetch_kafka import FetchError, cache_folder, fetch_artifact, put_in_place  # noqa: E402

CONNECTOR_VERSION = "4.2.0"
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)


def connector_folder() -> Path:
    """Return the folder of the jars, whether or not it exists."""
    return cache_folder().parent / f"spark-sql-kafka-{CONNECTOR_VERSION}"


def connector_jars() -> str:
    """Return the jars separated by commas, downloading them if needed. Raises FetchError if that fails."""
    folder = connector_folder()
    if not folder.is_dir():
        _fetch_into(folder)
    return ",".join(sorted(map(str, folder.glob("*.jar"))))


def _fetch_into(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        jars = Path(work, "jars")
        for jar in JARS:
            fetch_artifact(jar, jars)
        if len(list(jars.glob("*.jar"))) != len(JARS):
            raise FetchError(f"Maven reported success but not all of {', '.join(JARS)} are there")
        put_in_place(jars, folder)


def main() -> int:
    try:
        print(connector_jars())
    except FetchError as error:
        print(f"fetch_spark_kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
