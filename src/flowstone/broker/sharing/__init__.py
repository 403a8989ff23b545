"""Share groups' records in delivery: share partitions, share sessions, and the fetches that wait for records.

`share_partition.SharePartition` is the state machine, pure; `led_share_partition` hosts it on the partition's leader.
"""
