"""The classic consumer group protocol: joining, syncing, heartbeats, rebalances."""
