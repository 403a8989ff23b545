"""Downloads Apache Kafka with its tools from Maven Central into a cache folder outside the repository.

Owns the cache: `kafka_home()` is the folder of jars, `kafka_classpath()` the argument for `java -cp`. Benchmarks run
the broker from it, and the client checks run Kafka's own tools. Maven resolves the dependencies.

Invariant: the folder is renamed into place after every jar is in it. An existing folder is therefore complete, a second
call returns at once, and two concurrent callers get the same complete folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

FETCH_TIMEOUT_SECONDS = 600
INSTALL_TIMEOUT_SECONDS = 600
ERROR_LINES_MAX = 5

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>flowstone</groupId>
  <artifactId>kafka-to-compare-with</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_{SCALA_VERSION}</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{KAFKA_VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""


class FetchError(Exception):
    """Kafka is not available on this machine. The message is for users."""


def cache_folder() -> Path:
    """Return the folder of the jars, whether or not it exists."""
    # The XDG rules call a relative path invalid and to be ignored.
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "flowstone" / f"kafka-{KAFKA_VERSION}"


def kafka_home() -> Path:
    """Return the folder of Kafka's jars, downloading them if it does not exist."""
    folder = cache_folder()
    if not folder.is_dir():
        _fetch_into(folder)
    return folder


def kafka_classpath() -> str:
    """Return the argument for `java -cp`: the JVM expands the asterisk."""
    return f"{kafka_home()}/*"


def java_command() -> str:
    """Return the `java` for Kafka: from JAVA_HOME if set, else from the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        where = "JAVA_HOME/bin" if home else "the path"
        raise FetchError(
            f"no java on {where}: Kafka {KAFKA_VERSION} needs a Java 17 runtime; install one and try again"
        )
    return found


def _fetch_into(folder: Path) -> None:
    maven = maven_command()
    java_command()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, not in the system's temporary directory: a rename must stay within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        pom, jars = Path(work, "pom.xml"), Path(work, "jars")
        pom.write_text(POM)
        copy = [maven, "-B", "-q", "-f", str(pom), f"{DEPENDENCY_PLUGIN}:copy-dependencies"]
        run_fetch([*copy, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"], f"Kafka {KAFKA_VERSION}")
        if not any(jars.glob(f"kafka_{SCALA_VERSION}-{KAFKA_VERSION}.jar")):
            raise FetchError(f"Maven reported success but no Kafka {KAFKA_VERSION} jar is among what it fetched")
        put_in_place(jars, folder)


def fetch_artifact(artifact: str, into: Path) -> None:
    """Copy one artifact of Maven Central, without its dependencies, into a directory. Raises FetchError on failure."""
    goals = {"get": "-Dtransitive=false", "copy": f"-DoutputDirectory={into}"}
    for goal, option in goals.items():
        command = [maven_command(), "-B", "-q", f"{DEPENDENCY_PLUGIN}:{goal}", f"-Dartifact={artifact}", option]
        run_fetch(command, artifact)


def run_fetch(command: list[str], what: str) -> None:
    """Run a command that downloads or unpacks `what`. Raises FetchError with its error lines if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{command[0]} did not fetch {what} within {FETCH_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:ERROR_LINES_MAX]
        raise FetchError("\n".join([f"{command[0]} could not fetch {what} (exit {done.returncode}):", *errors]))


def put_in_place(complete: Path, folder: Path) -> None:
    """Rename a complete directory to its final name, unless another caller has done so first."""
    try:
        complete.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def maven_command() -> str:
    """Return the path of `mvn`, installing it if root can. Raises FetchError if there is none."""
    found = shutil.which("mvn")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install("maven")
        found = shutil.which("mvn")
    if found is None:
        raise FetchError("no mvn on the path: Maven downloads the jars; install it and try again")
    return found


def _apt_install(package: str) -> None:
    """Try to install a Debian package; the caller checks whether the command exists afterwards."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", package]
    for command in (install, ["apt-get", "update", "-q"], install):
        print(f"fetch_kafka: {' '.join(command)}", file=sys.stderr)
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=INSTALL_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return
        if done.returncode == 0 and command is install:
            return


def main() -> int:
    try:
        print(kafka_home())
    except FetchError as error:
        print(f"fetch_kafka: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
