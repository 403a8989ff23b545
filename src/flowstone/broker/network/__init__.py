"""Sockets and bytes: listeners, connections, receive buffers, what is queued for sending."""
