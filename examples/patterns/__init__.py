"""Messaging patterns, one program each: `python -m examples.patterns.work_queue`. docs/patterns.md explains them."""
