"""The cache of Kafka's jars: complete or absent, and clear about what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts import fetch_kafka

JAR = "kafka_2.13-4.3.1.jar"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An otherwise empty machine: a cache of its own, and a folder that is all of the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\nPATH=/bin:/usr/bin\n{script}\n")
    (folder / name).chmod(0o755)


PUT_A_JAR = f"""
for word in "$@"; do case $word in -DoutputDirectory=*) out=${{word#*=}};; esac; done
mkdir "$out" && touch "$out/{JAR}"
"""


def test_what_is_in_the_cache_needs_no_maven(commands: Path) -> None:
    fetch_kafka.cache_folder().mkdir(parents=True)
    assert fetch_kafka.kafka_classpath() == f"{fetch_kafka.cache_folder()}/*"


def test_without_maven_one_sentence_says_so(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_kafka.main() == 1
    assert "no mvn on the path" in capsys.readouterr().err


def test_without_java_one_sentence_says_so(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(commands, "mvn", "exit 0")
    assert fetch_kafka.main() == 1
    assert "no java on the path" in capsys.readouterr().err


def test_what_maven_copied_becomes_the_cache(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(commands, "java", "exit 0")
    put(commands, "mvn", PUT_A_JAR)
    assert fetch_kafka.main() == 0
    assert capsys.readouterr().out == f"{fetch_kafka.cache_folder()}\n"
    assert [jar.name for jar in fetch_kafka.cache_folder().iterdir()] == [JAR]


def test_a_failed_fetch_leaves_no_folder_and_repeats_mavens_words(commands: Path) -> None:
    put(commands, "java", "exit 0")
    put(commands, "mvn", PUT_A_JAR + "echo '[ERROR] no route'; exit 1")
    with pytest.raises(fetch_kafka.FetchError, match="no route"):
        fetch_kafka.kafka_home()
    assert list(fetch_kafka.cache_folder().parent.iterdir()) == []
