"""Puts the repository's root on the path: bench and scripts are programs of the repository, not of the package."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
