"""A partitioned, append-only log on disk, in Kafka's file formats.

Read the packages in this order: `partition` (one log: append, read, validation, producers), `segments` (its files and
indexes), `lifecycle` (flushing, recovery, retention), `directories` and `manager` (all logs of a broker), then
`compaction`, `scrubbing` and `branching`.

Everything belongs to one event loop and takes no locks. Threads only make file calls: they flush a `FlushTask`, warm
what `NotCached` names, and write checkpoints.
"""
