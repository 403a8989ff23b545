"""Consumer groups and their committed offsets: pure state machines, no IO, no clock.

The entry point is `shard.GroupShard`. `messages` has its requests and responses, `records` what is stored. Offsets,
expiry and administration are shared by all protocols (`classic`, `consumer`, `share`) and use `group.AnyGroup`.
"""
