"""`python -m flowstone.cli`, for environments in which the `flowstone` script is not on the path."""

from __future__ import annotations

from flowstone.cli.main import main

main()
