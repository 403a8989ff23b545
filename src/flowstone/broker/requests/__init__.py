"""Shared code of request handlers: the request context, parked requests, partition lookup, admission of producers."""
