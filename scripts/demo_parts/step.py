"""A step of the demo: its name, the figure that it gives, and whether the figure is what it has to be."""

from __future__ import annotations

from typing import NamedTuple


class Step(NamedTuple):
    name: str
    figure: str
    good: bool
