"""The commands of dead letters: reading them, what was done with them, and their retry."""
