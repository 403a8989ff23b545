"""Spark jobs on topics, one program each: `python -m examples.spark.sessions`. docs/spark-examples.md explains them."""
