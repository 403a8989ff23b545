"""Flowstone: a log-based message broker that speaks Kafka's wire protocol."""

from __future__ import annotations

__version__ = "0.1.0"
