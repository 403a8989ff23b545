"""Who a client is: the security of each listener, and logins."""
