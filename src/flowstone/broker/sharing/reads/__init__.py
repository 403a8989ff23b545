"""Reads of the log for share partitions: batches in order, those of chosen records, and parts of batches."""
