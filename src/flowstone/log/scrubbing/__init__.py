"""Scrubbing: old segments are read now and then, so that damage is known before a reader meets it."""
