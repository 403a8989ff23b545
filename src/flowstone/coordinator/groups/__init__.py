"""Consumer groups and their committed offsets: pure state machines, no IO, no clock.

`shard.GroupShard` is the way in. `messages` holds what goes in and comes out, `records` what is stored. Offsets, expiry
and administration are shared by all protocols and see groups as `group.AnyGroup`; `classic` is the one protocol there
is.
"""
