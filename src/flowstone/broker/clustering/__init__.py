"""The part of a broker that exists because there are other brokers: membership, controller role, replicas."""
