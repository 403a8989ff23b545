"""Membership and the metadata log in ZooKeeper."""
