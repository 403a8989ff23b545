"""`flowstone cluster`."""
