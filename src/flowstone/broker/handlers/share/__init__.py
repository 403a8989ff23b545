"""Handlers of the APIs of share groups."""
