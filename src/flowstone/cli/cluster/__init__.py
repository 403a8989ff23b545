"""`flowstone cluster`: commands about brokers and the placement of partitions."""
