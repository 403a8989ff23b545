"""A partitioned, append-only log on disk, in Kafka's file formats.

Read it in this order: `partition_log` (append, read, flush), `segment` and `segment_index` over `index` (where
things lie), `validation` and `producer_state` (what may enter), `flusher` (when it is durable), `recovery` with
`scanning` and `derived` (what a crash leaves), `manager` over `log_directory` and `retention` (all logs of a
broker).

Everything belongs to one event loop and takes no locks. Threads only make file calls: they flush a `FlushTask`, warm
what `NotCached` names, and write checkpoints.
"""
