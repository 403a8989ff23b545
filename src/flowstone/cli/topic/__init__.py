"""`flowstone topic` and `flowstone branch`."""
