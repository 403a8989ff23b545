"""What happens to logs over time: recovery, flushing, retention, truncation, clean stops."""
