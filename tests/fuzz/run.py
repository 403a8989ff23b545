"""Fuzzes the native kernel with AddressSanitizer and UndefinedBehaviorSanitizer: `make fuzz`.

Each `fuzz_<target>.c` beside this file calls one entry point of the kernel that network bytes, files or other programs'
columns can reach. It is built with clang's libFuzzer and run for its share of the time. What the fuzzer has found
interesting is kept in `.cache/fuzz/<target>/` and is where the next run goes on.

    python -m tests.fuzz.run --seconds 300
    python -m tests.fuzz.run --seconds 60 --target columns
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.seeds import seeds

HERE = Path(__file__).parent
KERNEL = HERE.parents[1] / "src" / "flowstone" / "kernel"
KEPT = HERE.parents[1] / ".cache" / "fuzz"
TARGETS = tuple(sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c")))
FLAGS = ("-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=fuzzer,address,undefined")
FLAGS += ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
INPUT_BYTES_MAX = 4096
MEMORY_MIB_MAX = 1024
INPUT_SECONDS_MAX = 10
BUILD_SECONDS_MAX = 120
FINDING_LINES = 30


class Fuzzed(NamedTuple):
    executions: int
    finding: str  # what the sanitizers said of an input, and the file that holds it; empty: nothing was found


def missing() -> str:
    """Return why nothing can be fuzzed here; an empty text if it can."""
    if not shutil.which("clang"):
        return "clang is not installed (Debian: apt-get install clang)"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "nothing.c")
        source.write_text("int LLVMFuzzerTestOneInput(const char *d, long n) { return d != 0 && n < 0; }\n")
        command = ["clang", "-fsanitize=fuzzer,address,undefined", str(source), "-o", str(Path(scratch, "nothing"))]
        built = subprocess.run(command, capture_output=True, timeout=BUILD_SECONDS_MAX, check=False)
    return "" if built.returncode == 0 else "clang has no libFuzzer (Debian: apt-get install libclang-rt-dev)"


def build(target: str, folder: Path, kernel: Path = KERNEL) -> Path:
    """Compile a target with the kernel's sources, and return the program."""
    program = folder / f"fuzz_{target}"
    sources = (str(HERE / f"fuzz_{target}.c"), str(kernel / "crc32c.c"))
    command = ["clang", *FLAGS, f"-I{kernel}", f"-I{HERE}", *sources, "-o", str(program)]
    subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
    return program


def fuzz(target: str, program: Path, corpus: Path, seconds: int) -> Fuzzed:
    """Run a target for so long, or until it finds something. The corpus is added to."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    found = corpus.parent / f"{target}-found-"
    limits = (f"-max_len={INPUT_BYTES_MAX}", f"-rss_limit_mb={MEMORY_MIB_MAX}", f"-timeout={INPUT_SECONDS_MAX}")
    command = [str(program), f"-max_total_time={seconds}", *limits, "-print_final_stats=1", f"-artifact_prefix={found}"]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    ended = subprocess.run([*command, str(corpus)], stderr=subprocess.PIPE, text=True, env=environment, check=False)
    counted = re.search(r"stat::number_of_executed_units:\s+(\d+)", ended.stderr)
    return Fuzzed(int(counted[1]) if counted else 0, "" if ended.returncode == 0 else _finding(ended.stderr))


def _finding(output: str) -> str:
    """Return what the sanitizers said, from the error on, and the file with the input that led to it."""
    lines = output.splitlines()
    first = next((number for number, line in enumerate(lines) if re.search(r"ERROR:|runtime error:", line)), 0)
    written = [line for line in lines if "Test unit written to" in line]
    return "\n".join([*lines[first : first + FINDING_LINES], *written])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one; may be given several times")
    options = parser.parse_args()
    if reason := missing():
        print(f"nothing can be fuzzed: {reason}")
        return 1
    targets = options.target or TARGETS
    findings = 0
    with tempfile.TemporaryDirectory(prefix="flowstone-fuzz-") as scratch:
        for target in targets:
            fuzzed = fuzz(target, build(target, Path(scratch)), KEPT / target, max(1, options.seconds // len(targets)))
            findings += bool(fuzzed.finding)
            print(f"{target}: {fuzzed.executions} executions, {fuzzed.finding or 'nothing found'}", flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
