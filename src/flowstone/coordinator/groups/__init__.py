"""Consumer groups of the classic protocol and their committed offsets: pure state machines, no IO, no clock.

`shard.GroupShard` is the way in. `messages` holds what goes in and comes out, `records` what is stored.
"""
