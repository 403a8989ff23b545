"""The cluster's metadata: one ordered log of changes, the image they add up to, and the decisions that make them.

`metadata_log` (with its homes `file_log` and `memory_log`) keeps `records`; `replay` turns them into an `image`;
`metadata` is a broker's running copy; `topic_changes`, `config_changes` and `controller` decide which records a request
makes. Decisions are pure functions of an image, so that they can be tested, simulated and read without a broker.
"""
