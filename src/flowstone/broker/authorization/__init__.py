"""Authorization of each API: checks requests before their handlers run, and hides what a client may not see."""
