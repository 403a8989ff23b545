"""The sample of docstrings that a stranger reads to judge the prose."""

from __future__ import annotations

from pathlib import Path

from scripts.sample_docstrings import documented, sample

SOURCE = '''"""A module."""
class Log:
    """A log."""
    def append(self, record: bytes) -> int:
        """Append a record."""
        def check() -> None:
            """Check it."""
    def undocumented(self) -> None: ...
'''


def test_every_docstring_of_a_module_is_found_with_its_signature(tmp_path: Path) -> None:
    path = tmp_path / "log.py"
    path.write_text(SOURCE)
    assert list(documented(path)) == [
        ("log.py: module", "A module."),
        ("log.py: class Log", "A log."),
        ("log.py: Log.append(self, record: bytes) -> int", "Append a record."),
        ("log.py: Log.append.check() -> None", "Check it."),
    ]


def test_the_same_seed_gives_the_same_sample_and_another_seed_another(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"module_{number}.py").write_text(f'"""Module {number}."""\n')
    assert sample([tmp_path], 10, seed=1) == sample([tmp_path], 10, seed=1) != sample([tmp_path], 10, seed=2)


def test_a_count_above_the_number_of_docstrings_gives_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text(SOURCE)
    assert len(sample([tmp_path], 100, seed=0)) == 4
