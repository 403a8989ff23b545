"""Flowstone: a log-based message broker that speaks Kafka's wire protocol.

`flowstone.Broker` runs one inside this process; it is loaded when first asked for, so that importing the package costs
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowstone.embedded import Broker

__all__ = ["Broker", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from flowstone.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
