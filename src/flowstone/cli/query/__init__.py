"""`flowstone sql`."""
