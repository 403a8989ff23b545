"""Quotas of clients: how fast they are, how fast they may be, and for how long they are throttled."""
