"""The share coordinator of this broker, and access to the states of share partitions on all brokers."""
