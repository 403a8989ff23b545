"""Conversion between record batches and Arrow columns (`pyarrow.RecordBatch`): `decode` and `encode`.

Needs pyarrow (the extra `arrow`). The package has no I/O: `client` fetches and sends the bytes.
"""
