"""The cluster's metadata: one ordered log of changes, the image they add up to, and the decisions that make them.

`metadata_log` (with its homes `file_log`, `memory_log`, `zookeeper_log`) keeps `records`; `replay` turns them into an
`image`; `metadata` is a broker's running copy. `consensus` (with its homes `memory_ensemble`, `zookeeper`) says who
is a member. `topic_changes`, `config_changes`, `elections`, `in_sync_changes`, `reassignments`, `withdrawals` and
`controller` decide which records a request, a death or a return makes: pure functions of an image, so that they can
be tested, simulated and read without a broker.
"""
