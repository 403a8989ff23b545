"""Lag of consumer groups: in records and seconds, headroom, and the survey of all groups."""
