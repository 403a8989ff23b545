"""The parts of `make demo`: a module for each step, and what they share."""
