"""The metadata log: its interface, and its implementations in a file and in memory."""
