"""Branches of logs: what they share with their source, how their directories come to be, who opens them."""
