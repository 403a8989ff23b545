"""`flowstone dlq`: the dead letters of share groups."""
