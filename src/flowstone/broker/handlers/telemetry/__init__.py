"""Handlers of client telemetry (KIP-714)."""
