"""Spark benchmark: our format and the stock Kafka connector, with Flowstone and with Apache Kafka."""
