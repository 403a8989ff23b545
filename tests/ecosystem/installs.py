"""Ways to install a product, each into a folder of the cache that belongs to it alone, once.

Our own programs in `programs/` are compiled anew for each case; what they need comes from the public registries of
Python, Go, Java and Node, or from a package of Debian.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copyfile

from scripts.client_suites.suite import FETCH_TIMEOUT_S, cached, run, tool
from scripts.fetch_kafka import (
    DEPENDENCY_PLUGIN,
    KAFKA_VERSION,
    fetch_artifact,
    kafka_classpath,
    maven_command,
    run_fetch,
)

PROGRAMS = Path(__file__).with_name("programs")
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>flowstone</groupId><artifactId>ecosystem</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""


def python_of(name: str, *requirements: str) -> str:
    """Return the Python of an environment that has the packages, made in the cache if it is missing."""

    def fill(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)], timeout_s=FETCH_TIMEOUT_S)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *requirements]
        run(pip, timeout_s=FETCH_TIMEOUT_S)

    return str(cached(name, fill) / "bin" / "python")


def go_program(name: str, source: str, *modules: str) -> str:
    """Return a program in Go, built from `programs/<source>` with the modules unless the cache has it."""
    go, program = tool("go"), PROGRAMS / source

    def fill(folder: Path) -> None:
        run([go, "mod", "init", "checks"], folder=folder)
        run([go, "get", *modules], folder=folder, timeout_s=FETCH_TIMEOUT_S)

    folder = cached(name, fill)
    (folder / "main.go").write_text(program.read_text())
    run([go, "build", "-mod=mod", "-o", "checks"], folder=folder, timeout_s=FETCH_TIMEOUT_S)
    return str(folder / "checks")


def java_classpath(name: str, *artifacts: str) -> str:
    """Return the class path of artifacts of Maven Central (`group:artifact:version`) with all that they need."""
    parts = ("groupId", "artifactId", "version")

    def fill(folder: Path) -> None:
        dependencies = "".join(
            "<dependency>"
            + "".join(f"<{tag}>{text}</{tag}>" for tag, text in zip(parts, each.split(":"), strict=True))
            + "</dependency>"
            for each in artifacts
        )
        pom = folder / "pom.xml"
        pom.write_text(POM.format(dependencies=dependencies))
        goal = [f"{DEPENDENCY_PLUGIN}:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        run_fetch([maven_command(), "-B", "-q", "-f", str(pom), *goal], name)

    return f"{cached(name, fill)}/*"


def kafka_with(name: str, *artifacts: str) -> str:
    """Return Apache Kafka's class path with further artifacts of Maven Central before it."""

    def fill(folder: Path) -> None:
        for artifact in artifacts:
            fetch_artifact(artifact, folder)

    return f"{cached(f'ecosystem-{name}-{KAFKA_VERSION}', fill)}/*:{kafka_classpath()}"


def properties_file(path: Path, values: Mapping[str, object]) -> str:
    """Write settings as Java's programs read them; return the path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)


def java_program(source: str, classpath: str, folder: Path) -> str:
    """Compile `programs/<source>` into the folder; return the class path that runs it."""
    run([tool("javac"), "-parameters", "-cp", classpath, "-d", str(folder), str(PROGRAMS / source)])
    return f"{folder}:{classpath}"


def go_tool(name: str, module: str) -> str:
    """Return a program of other people in Go, `path@version`, built unless the cache has it."""
    go, program = tool("go"), module.rpartition("@")[0].rpartition("/")[2]

    def fill(folder: Path) -> None:
        run([go, "install", module], folder=folder, timeout_s=FETCH_TIMEOUT_S, variables={"GOBIN": str(folder)})

    return str(cached(name, fill) / program)


def node_program(name: str, source: str, packages: Sequence[str], folder: Path) -> list[str]:
    """Return the command that runs `programs/<source>` with packages of npm."""
    npm = tool("npm")

    def fill(into: Path) -> None:
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(into), *packages]
        run(command, folder=into, timeout_s=FETCH_TIMEOUT_S)

    program = folder / source
    copyfile(PROGRAMS / source, program)
    modules = folder / "node_modules"
    if not modules.exists():  # Node looks for a program's modules beside it
        modules.symlink_to(cached(name, fill) / "node_modules")
    return [tool("node"), str(program)]
