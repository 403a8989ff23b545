"""Sharing the event loop: time slices for long work, deadlines, worker threads, cold reads."""
