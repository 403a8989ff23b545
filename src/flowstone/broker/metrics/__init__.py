"""The text of `/metrics`: what is read from the broker when it is scraped."""
