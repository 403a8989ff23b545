"""The kernel is built wherever a compiler is, and only as often as needed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flowstone import kernel
from flowstone.kernel import build

needs_compiler = pytest.mark.skipif(not build.compilers(), reason="no C compiler on this machine")


def copy_of_build(directory: Path) -> ModuleType:
    """build.py loaded by its path from elsewhere, as the wheel's build hook does."""
    for path in (*build.SOURCES, *build.HEADERS):
        shutil.copy(path, directory)
    source = shutil.copy(build.__file__, directory)
    spec = importlib.util.spec_from_file_location("standalone_kernel_build", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiler
def test_where_a_compiler_exists_the_native_kernel_runs() -> None:
    assert kernel.KERNEL == "native", "run: python -m flowstone.kernel.build"
    assert build.is_current(), "the C sources have changed; run: python -m flowstone.kernel.build"


@needs_compiler
def test_the_build_stands_alone_and_leaves_one_library(tmp_path: Path) -> None:
    standalone = copy_of_build(tmp_path)

    library = standalone.compile_kernel()

    assert library is not None
    assert library.parent == tmp_path
    sources = {path.name for path in (*build.SOURCES, *build.HEADERS)}
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"build.py", library.name} | sources


@needs_compiler
def test_a_current_library_is_not_built_again(tmp_path: Path) -> None:
    standalone = copy_of_build(tmp_path)
    library = standalone.compile_kernel()
    before = library.stat().st_ino

    assert standalone.compile_kernel() == library
    assert library.stat().st_ino == before


@needs_compiler
def test_a_changed_source_is_built_again(tmp_path: Path) -> None:
    standalone = copy_of_build(tmp_path)
    library = standalone.compile_kernel()
    before = library.stat().st_ino

    with (tmp_path / "library.c").open("a") as source:
        source.write("/* changed */\n")

    assert not standalone.is_current()
    assert standalone.compile_kernel() == library
    assert library.stat().st_ino != before


@needs_compiler
def test_a_source_that_does_not_compile_yields_no_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    standalone = copy_of_build(tmp_path)
    (tmp_path / "library.c").write_text("int unused(int parameter) { return 1; }\n")

    assert standalone.compile_kernel() is None
    assert "unused parameter" in capsys.readouterr().err


def test_without_a_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standalone = copy_of_build(tmp_path)
    monkeypatch.setattr(standalone, "compilers", list)

    assert standalone.compile_kernel() is None


@needs_compiler
def test_the_wheel_tag_names_no_python_version_and_this_platform() -> None:
    assert re.fullmatch(r"py3-none-(manylinux_2_\d+|linux|macosx_11_0)_\w+", build.wheel_tag())


@needs_compiler
def test_the_command_says_what_it_did() -> None:
    command = [sys.executable, "-W", "error", "-m", "flowstone.kernel.build"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert "is up to date" in done.stdout
    assert done.stderr == ""


def test_a_library_of_another_layout_is_not_loaded(tmp_path: Path) -> None:
    """In a process of its own: the package's native module stays as it is."""
    package = tmp_path / "flowstone"
    shutil.copytree(Path(kernel.__file__).parent.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    native = package / "kernel" / "native.py"
    native.write_text(native.read_text().replace("LAYOUT_VERSION = 2", "LAYOUT_VERSION = 0"))

    command = [sys.executable, "-c", "from flowstone.kernel import KERNEL; print(KERNEL)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONPATH": tmp_path})

    assert done.stdout == "python\n"
