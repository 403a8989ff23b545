"""Pipeline benchmark: a declared pipeline, the same job on Flowstone's format, and one on Spark's Kafka connector."""
