"""Charts of the results of the demo's Spark queries: a table of categories, and a bar for each five minutes."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console
from rich.table import Table
from scripts.demo_spark import WINDOW_S, Outcome, Totals

BAR_CHARACTERS = 60


def print_revenue(console: Console, outcome: Outcome) -> None:
    console.print(_by_category(outcome.topic))
    console.print("Revenue by five minutes (▓ in the Parquet table, ░ still open when the query ended)")
    closed = {window_start_s for window_start_s, _category in outcome.table}
    totals = Counter[int]()
    for (window_start_s, _category), (_orders, amount_cents) in outcome.topic.items():
        totals[window_start_s] += amount_cents
    highest = max(totals.values(), default=1)
    for window_start_s in range(min(totals, default=0), max(totals, default=-1) + 1, WINDOW_S):
        mark = "▓" if window_start_s in closed else "░"
        bar = mark * max(1, totals[window_start_s] * BAR_CHARACTERS // highest)
        clock = time.strftime("%H:%M", time.localtime(window_start_s))
        console.print(f"{clock} {bar} {totals[window_start_s] / 100:,.0f} €", highlight=False)


def _by_category(totals: Totals) -> Table:
    orders, cents = Counter[str](), Counter[str]()
    for (_window_start_s, category), (count, amount_cents) in totals.items():
        orders[category] += count
        cents[category] += amount_cents
    table = Table(title="Revenue by category, from the topic `revenue`", title_justify="left")
    table.add_column("category")
    for name in ("orders", "revenue"):
        table.add_column(name, justify="right")
    for category, amount_cents in cents.most_common():
        table.add_row(category, f"{orders[category]:,}", f"{amount_cents / 100:,.2f} €")
    return table
