"""Fetch beyond the handler: incremental sessions, replicas that read, the replica nearest to a consumer."""
