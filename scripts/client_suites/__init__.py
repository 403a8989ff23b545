"""Clients in other languages and their own test suites, each in a module with a `run` that `make clients` calls."""
