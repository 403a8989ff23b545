"""Compaction of logs: which logs are due, the process that compacts them, and how the broker exchanges jobs with it."""
