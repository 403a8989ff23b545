"""Handlers of the APIs of consumer groups (KIP-848)."""
