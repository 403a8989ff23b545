"""Shared parts of all commands: connecting to a broker, output, errors, numbers and times."""
