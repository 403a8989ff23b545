"""Real clients of other languages, and their own suites, each in a module with a `run` that `make clients` calls."""
