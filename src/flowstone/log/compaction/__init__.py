"""Compaction of logs: what is due, the process that does it, and what the broker hears of it."""
