"""Runnable examples, each a file of its own that a test runs too."""
