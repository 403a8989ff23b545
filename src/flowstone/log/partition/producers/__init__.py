"""Idempotent producers of a partition: their sequence numbers, their transactions, and snapshots of both."""
