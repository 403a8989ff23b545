"""The logs of a log directory, and the log directories of a broker."""
