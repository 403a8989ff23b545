"""The identity of clients: the security of each listener, and logins."""
