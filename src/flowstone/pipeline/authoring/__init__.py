"""The two forms of a pipeline, `pipeline.py` and `pipeline.yaml`, and the checks of what they declare."""
