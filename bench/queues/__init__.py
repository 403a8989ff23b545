"""`python -m bench.queues`: share groups beside Apache Kafka's."""
