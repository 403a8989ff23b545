"""The download of the schema registry: by the archive's address, checked against the SHA-1 beside it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from scripts import fetch_registry
from scripts.fetch_kafka import FetchError
from scripts.fetch_registry import download, registry_jar

JAR = "apicurio-registry-app-9-runner.jar"


def archive_of(repository: Path, *, sha1: str = "") -> str:
    """Put an archive with the jar into a repository; return its address."""
    file = repository / "9" / "apicurio-registry-app-9-all.tar.gz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo(JAR), io.BytesIO())
    found = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
    Path(f"{file}.sha1").write_text(sha1 or f"{found}  {file.name}\n")
    return file.as_uri()


def test_a_file_is_downloaded_if_its_sha_1_is_right(tmp_path: Path) -> None:
    address = archive_of(tmp_path / "repository")
    download(address, tmp_path)
    assert (tmp_path / "apicurio-registry-app-9-all.tar.gz").stat().st_size > 0


def test_a_file_with_another_sha_1_is_refused(tmp_path: Path) -> None:
    address = archive_of(tmp_path / "repository", sha1="0" * 40)
    with pytest.raises(OSError, match="has another SHA-1"):
        download(address, tmp_path)
    assert not list(tmp_path.glob("*.tar.gz"))


def test_the_registry_is_fetched_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_of(tmp_path / "repository")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch_registry, "CENTRAL", (tmp_path / "repository").as_uri())
    monkeypatch.setattr(fetch_registry, "fetch_artifact", lambda *_: pytest.fail("Maven is asked"))
    assert registry_jar("9").name == JAR


def test_maven_is_asked_if_the_address_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(artifact: str, into: Path) -> None:
        raise FetchError(f"asked for {artifact}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch_registry, "CENTRAL", (tmp_path / "nothing").as_uri())
    monkeypatch.setattr(fetch_registry, "fetch_artifact", refuse)
    with pytest.raises(FetchError, match=r"asked for io[.]apicurio:apicurio-registry-app:9:tar[.]gz:all"):
        registry_jar("9")
