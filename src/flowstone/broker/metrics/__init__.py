"""The text of `/metrics`, written from the broker's counters and state at each scrape."""
