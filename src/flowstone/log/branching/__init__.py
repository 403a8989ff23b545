"""Branches of logs: the files they share with their source, how their directories are made and opened."""
