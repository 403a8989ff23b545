"""Transactions of producers with a transactional id: a pure state machine, no IO, no clock.

`shard.TransactionShard` is the entry point. `messages` has its requests and responses, `records` its stored records.
"""
