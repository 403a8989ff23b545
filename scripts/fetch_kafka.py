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
        _run_maven([maven, "-B", "-q", "-f", str(pom), f"{DEPENDENCY_PLUGIN}:copy-dependencies",
                    f"-DoutputDirectory={jars}", "-DincludeScope=runtime"])  # fmt: skip
        if not any(jars.glob(f"kafka_{SCALA_VERSION}-{KAFKA_VERSION}.jar")):
            raise FetchError(f"Maven reported success but no Kafka {KAFKA_VERSION} jar is among what it fetched")
        try:
            jars.rename(folder)
        except OSError:
            if not folder.is_dir():  # another caller has created the folder, equally complete
                raise


def _run_maven(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"Maven did not fetch Kafka {KAFKA_VERSION} within {FETCH_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        told = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line][:ERROR_LINES_MAX]
        raise FetchError("\n".join([f"Maven could not fetch Kafka {KAFKA_VERSION} (exit {done.returncode}):", *told]))


def maven_command() -> str:
    found = shutil.which("mvn")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install("maven")
        found = shutil.which("mvn")
    if found is None:
        raise FetchError(f"no mvn on the path: Kafka {KAFKA_VERSION} is fetched with Maven; install it and try again")
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
