"""Compiler of the *.c files in this directory into the library for native.py: `python -m flowstone.kernel.build`.

The module uses only the standard library and imports nothing from the package, because the wheel's build hook loads it
by its path before the package exists.

The library contains a fingerprint of its sources and flags, and is rebuilt only if the fingerprint has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_MACOS = sys.platform == "darwin"
_MACOS_VERSION_MIN = "11.0"
_GLIBC_MINOR_MIN = 17  # glibc 2.17: the oldest that current installers support
_COMPILE_TIMEOUT_SECONDS = 120

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
HEADERS = sorted(Path(__file__).parent.glob("*.h"))
LIBRARY = Path(__file__).with_name("_kernel.dylib" if _MACOS else "_kernel.so")
FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-pthread", "-fvisibility=default", "-Wall", "-Wextra", "-Werror")


def compilers() -> list[list[str]]:
    """Return the C compilers of this machine, as command prefixes, in order of preference."""
    found = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    found += [[path] for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "cc"])
    return found


def fingerprint() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in (*SOURCES, *HEADERS):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def is_current() -> bool:
    """Return whether the library was built from the current sources and flags."""
    try:
        return f"flowstone-kernel:{fingerprint()}".encode() in LIBRARY.read_bytes()
    except FileNotFoundError:
        return False


def compile_kernel() -> Path | None:
    """Return the path of the up-to-date library, building it if needed.

    Returns None if there is no compiler or every compiler fails; stderr shows the reason.
    """
    if is_current():
        return LIBRARY
    for compiler in compilers():
        try:
            _compile_with(compiler)
            return LIBRARY
        except subprocess.CalledProcessError as error:
            print(f"{shlex.join(compiler)} cannot build the kernel:\n{error.stderr}", file=sys.stderr)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"{shlex.join(compiler)} cannot build the kernel: {error}", file=sys.stderr)
    return None


def _compile_with(compiler: list[str]) -> None:
    """Build into a temporary file and rename it, so that a process loads either the old or the new library."""
    with tempfile.TemporaryDirectory(dir=LIBRARY.parent, prefix="_kernel-") as scratch:
        output = Path(scratch, LIBRARY.name)
        platform_flags = [f"-mmacosx-version-min={_MACOS_VERSION_MIN}"] if _MACOS else []
        define = f'-DKERNEL_FINGERPRINT="{fingerprint()}"'
        command = [*compiler, *FLAGS, *platform_flags, define, *map(str, SOURCES), "-o", str(output)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_SECONDS)
        os.replace(output, LIBRARY)


def wheel_tag() -> str:
    """Return the tag of a wheel with the library: any Python 3, this machine's platform."""
    machine = platform.machine()
    if _MACOS:
        return f"py3-none-macosx_{_MACOS_VERSION_MIN.replace('.', '_')}_{machine}"
    if platform.libc_ver()[0] == "glibc":
        needed = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", LIBRARY.read_bytes())]
        return f"py3-none-manylinux_2_{max([_GLIBC_MINOR_MIN, *needed])}_{machine}"
    return f"py3-none-{re.sub(r'[-.]', '_', sysconfig.get_platform())}"


def main() -> int:
    if is_current():
        print(f"kernel: {LIBRARY.name} is up to date")
    elif not compilers():
        print("kernel: no C compiler found (cc, gcc, clang or the package ziglang); the Python twin will run")
    elif compile_kernel() is None:
        print("kernel: not built; the Python twin will run")
        return 1
    else:
        print(f"kernel: built {LIBRARY.name} for {wheel_tag()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
