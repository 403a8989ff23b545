"""Handlers of administrative APIs about the whole cluster."""
