"""The state of pipelines on the broker: runs, start positions, declared versions, errors and counters."""
