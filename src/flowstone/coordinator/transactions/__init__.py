"""Transactions of producers with a transactional id: a pure state machine, no IO, no clock.

`shard.TransactionShard` is the way in. `messages` holds what goes in and comes out, `records` what is stored.
"""
