"""Schema registries with Confluent's REST API: the client and its settings, and the wire format of their records."""
