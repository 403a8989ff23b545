"""`flowstone share`: see and change share groups."""
