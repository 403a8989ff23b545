"""Coordinators hosted by this broker, over the internal topics whose partitions it leads."""
