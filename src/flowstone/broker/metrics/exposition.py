"""The text of a scrape, in Prometheus's format (0.0.4): names, labels, values, one family after the other.

Owns the format, not the choice of metrics. Prometheus's own library takes 30 ms of the loop for a thousand partitions,
and this module 3 (docs/adr/0006-http.md); the tests parse its text with that library.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowstone.counters import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(**labels: object) -> str:
    """Return labels as they are written in a sample, braces included."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


class Exposition:
    def __init__(self) -> None:
        self._parts: list[str] = []

    def gauge(self, name: str, help_text: str, samples: float | Mapping[str, float]) -> None:
        """Write a gauge with one value, or with values by the text of their labels."""
        self._simple(name, "gauge", help_text, samples)

    def counter(self, name: str, help_text: str, samples: float | Mapping[str, float]) -> None:
        """Write a counter with one value, or with values by the text of their labels."""
        self._simple(name, "counter", help_text, samples)

    def histogram(self, name: str, help_text: str, samples: Histogram | Mapping[str, Histogram]) -> None:
        """Write one histogram, or several by the text of their labels."""
        self._begin(name, "histogram", help_text)
        for labels, histogram in samples.items() if isinstance(samples, Mapping) else (("", samples),):
            before_bound = f"{labels[:-1]}," if labels else "{"
            count = 0
            for bound, at_bound in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                count += at_bound
                self._parts.append(f'{name}_bucket{before_bound}le="{bound}"}} {count}\n')
            self._parts.append(f"{name}_sum{labels} {histogram.total}\n{name}_count{labels} {count}\n")

    def text(self) -> bytes:
        return "".join(self._parts).encode()

    def _simple(self, name: str, kind: str, help_text: str, samples: float | Mapping[str, float]) -> None:
        self._begin(name, kind, help_text)
        if isinstance(samples, Mapping):
            self._parts += [f"{name}{labels} {value}\n" for labels, value in samples.items()]
        else:
            self._parts.append(f"{name} {samples}\n")

    def _begin(self, name: str, kind: str, help_text: str) -> None:
        self._parts.append(f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n")
