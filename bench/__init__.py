"""Benchmarks of Flowstone against other brokers. They know only the wire protocol and import nothing of the broker."""
