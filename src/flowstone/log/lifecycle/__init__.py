"""The life cycle of logs: recovery, flushing, retention, truncation, clean stops."""
