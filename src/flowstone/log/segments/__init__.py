"""The files of one partition: segments, indexes, checkpoints, and how they are read, replaced and shared."""
