"""Runs the model of a pipeline on Spark: sources, steps, expectations, dead letters and sinks."""
