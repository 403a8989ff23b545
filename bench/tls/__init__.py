"""Flowstone and Apache Kafka over TLS: `python -m bench.tls`."""
