"""`flowstone doctor`."""
