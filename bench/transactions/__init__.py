"""Transactions benchmark: transactional producers and read_committed fetches, beside Apache Kafka."""
