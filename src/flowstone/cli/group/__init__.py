"""`flowstone group`."""
