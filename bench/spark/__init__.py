"""Topics in Spark, by our format and by the stock Kafka connector, on Flowstone and on Apache Kafka."""
