"""Everything that commands print, write to backups and dump from the data directory, searched for secrets."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from tests.unit.cli.access.test_secure import secrets_in, secured

__all__ = ["secured"]  # a fixture


def test_no_secret_is_in_dumps_backups_and_errors_of_commands(secured, run, tmp_path: Path) -> None:
    client, _ = secured
    config = ("--config", client)
    assert run("topic", "create", "t", "--command-config", client).returncode == 0
    assert run("produce", "t", *config, input="hello\n").returncode == 0
    created = run("token", "create", "--json", *config)
    password = json.loads(created.stdout)["password"]
    added = run("user", "add", "bob", "--password", "canary-of-bob", *config)
    backup = tmp_path / "backup"
    told = [
        added,
        run("token", "list", "--json", *config),
        run("user", "list", "--json", *config),
        run("topic", "describe", "t", *config),
        run("cluster", "status", *config),
        run("doctor", *config),
        run("backup", "t", "--to", backup, *config),
        run("token", "list", "--config", client, "--bootstrap", "127.0.0.1:1"),
    ]
    logs = sorted(path for path in (tmp_path / "data").iterdir() if path.is_dir())
    assert any("metadata" in path.name for path in logs)
    told += [run("log", "dump", path, *more) for path in logs for more in (("--records",), ("--json",))]
    assert "hello" in "".join(each.stdout for each in told)
    hmac = base64.b64decode(password)
    secrets = [*secrets_in(tmp_path / "secured"), password, hmac.hex(), "canary-of-bob"]
    outputs = [each.stdout + each.stderr for each in told]
    assert [(secret, text) for secret in secrets for text in outputs if secret in text] == []
    assert (backup / "backup.json").is_file()
    kept = [path.read_bytes() for where in (backup, tmp_path / "data") for path in where.rglob("*") if path.is_file()]
    assert [secret for secret in secrets for data in kept if secret.encode() in data] == []
    assert not any(hmac in data for data in kept)
