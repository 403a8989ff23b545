"""The consumer group protocol of KIP-848: the coordinator assigns partitions, and members reconcile by heartbeats."""
