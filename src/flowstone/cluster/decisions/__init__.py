"""Decisions about the cluster: pure functions from an image and a request to metadata records."""
