"""Scrubbing: verifies old segments from time to time, so that damage is known before a reader meets it."""
