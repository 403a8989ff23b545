"""Sockets and bytes: listeners, connections, receive buffers, and the outbox of unsent responses."""
