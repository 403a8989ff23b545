"""Charts of what the demo's pipeline wrote: a table of categories, and a bar for each five minutes."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console
from rich.table import Table
from scripts.demo_parts.pipeline import Row

BAR_CHARACTERS = 60
WINDOW_S = 300


def print_revenue(console: Console, rows: Counter[Row], retried: Counter[Row]) -> None:
    """Print charts of all rows; `retried` are those of them that were dead letters first."""
    console.print(_by_category(rows))
    console.print("Revenue by five minutes (▓ at once, ░ from dead letters that were retried after the fix)")
    totals, late = _by_window(rows), _by_window(retried)
    highest = max(totals.values(), default=1)
    for window_s in range(min(totals, default=0), max(totals, default=-1) + 1, WINDOW_S):
        length = max(1, totals[window_s] * BAR_CHARACTERS // highest)
        late_length = late[window_s] * BAR_CHARACTERS // highest
        bar = "▓" * (length - late_length) + "░" * late_length
        clock = time.strftime("%H:%M", time.localtime(window_s))
        console.print(f"{clock} {bar} {totals[window_s] / 100:,.0f} €", highlight=False)


def _by_window(rows: Counter[Row]) -> Counter[int]:
    totals = Counter[int]()
    for row, count in rows.items():
        totals[row.at_s - row.at_s % WINDOW_S] += row.amount_cents * count
    return totals


def _by_category(rows: Counter[Row]) -> Table:
    orders, cents = Counter[str](), Counter[str]()
    for row, count in rows.items():
        orders[row.category] += count
        cents[row.category] += row.amount_cents * count
    table = Table(title="Revenue by category, from the table `sales`", title_justify="left")
    table.add_column("category")
    for name in ("orders", "revenue"):
        table.add_column(name, justify="right")
    for category, amount_cents in cents.most_common():
        table.add_row(category, f"{orders[category]:,}", f"{amount_cents / 100:,.2f} €")
    return table
