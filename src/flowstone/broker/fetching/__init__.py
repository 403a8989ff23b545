"""The parts of fetching outside the handler: incremental sessions, reads by followers, reads from a nearby replica."""
