"""Spark jobs on topics, one program each: `python -m examples.spark.sessions`; see docs/spark-examples.md."""
