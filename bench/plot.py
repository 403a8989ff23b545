"""SVG plot of the ratios of a run: one bar per case, to the right of 1 if Flowstone is better.

The SVG is written directly, because a bar is a rectangle and a plotting library would be the largest dependency. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.cases import Case

WIDTH, ROW_HEIGHT, TOP = 1000, 22, 60
LABEL_WIDTH, BAR_AREA = 490, 440
RATIO_MAX = 64.0
TICKS = (1 / 16, 1 / 4, 1, 4, 16, 64)
HIGHER_IS_BETTER = ("_per_s",)
BETTER, WORSE = "#2f7d4f", "#b3492e"


def advantage(metric: str, ratio: float) -> float:
    """Return how many times better Flowstone is: the ratio, or its inverse if less is better."""
    return ratio if metric.endswith(HIGHER_IS_BETTER) else 1 / ratio


def svg(title: str, cases: Sequence[Case]) -> str:
    bars = [(case, ratio) for case in cases if (ratio := case.ratio(case.headline))]
    height = TOP + ROW_HEIGHT * len(bars) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>',
        '<text x="12" y="44" fill="#555">times better than Apache Kafka, medians, logarithmic</text>',
    ]
    for tick in TICKS:
        label = f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}"
        parts.append(f'<line x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="{TOP}" y2="{height - 26}" stroke="#ddd"/>')
        parts.append(f'<text x="{_x(tick):.1f}" y="{height - 10}" text-anchor="middle" fill="#555">{label}</text>')
    for row, (case, ratio) in enumerate(bars):
        parts += _bar(TOP + ROW_HEIGHT * row, f"{case}: {case.headline}", advantage(case.headline, ratio))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bar(top: int, label: str, value: float) -> list[str]:
    begin, end = sorted((_x(1), _x(value)))
    colour = BETTER if value >= 1 else WORSE
    return [
        f'<text x="{LABEL_WIDTH}" y="{top + 15}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{begin:.1f}" y="{top + 4}" width="{max(end - begin, 1):.1f}" height="14" fill="{colour}"/>',
        f'<text x="{end + 4:.1f}" y="{top + 15}" fill="#333">{value:.2f}</text>',
    ]


def _x(value: float) -> float:
    low = math.log(TICKS[0])
    share = (math.log(min(max(value, TICKS[0]), RATIO_MAX)) - low) / (math.log(RATIO_MAX) - low)
    return LABEL_WIDTH + 10 + share * BAR_AREA
