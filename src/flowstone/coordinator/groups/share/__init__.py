"""The share group protocol (KIP-932): members that share the records of partitions, as in a queue."""
