"""Runnable examples, one file each; the tests run them too."""
