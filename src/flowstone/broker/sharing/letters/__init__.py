"""Dead letters of share groups: which are planned, how they are sent once, and what they hold."""
