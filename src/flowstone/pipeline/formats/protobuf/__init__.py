"""Protobuf values, decoded and encoded by ptars in Spark's workers.

`format.py` is the entry. The package needs ptars, protobuf and numpy, which come with
`pip install flowstone[protobuf]`, and is imported only for pipelines that have Protobuf values.
"""
