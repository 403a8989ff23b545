"""`flowstone backup` and `flowstone restore`."""
