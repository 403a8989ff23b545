"""Flowstone measured side by side with its peers. Knows the wire only: nothing here imports the broker."""
