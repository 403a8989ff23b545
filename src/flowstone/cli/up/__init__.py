"""`flowstone up`."""
