"""Avro values, decoded and encoded with numpy and Arrow in Spark's workers.

`format.py` is the entry. The package needs numpy, which comes with `pip install flowstone[avro]`, and is imported only
for pipelines that have Avro values.
"""
