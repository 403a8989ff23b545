"""Records as Arrow columns, both ways: record batches to `pyarrow.RecordBatch` (`decode`) and back (`encode`).

Needs pyarrow (the extra `arrow`). Pure: bytes in, columns out and the reverse; fetching and sending them is `client`'s.
"""
