"""Record values to columns and back: JSON, CSV, Avro, Protobuf, text and raw bytes, and the schema registry."""
