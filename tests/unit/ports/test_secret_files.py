from __future__ import annotations

import pytest

from flowstone.ports.secret_files import read_secret, write_secret


def test_only_the_owner_may_read_a_secret(tmp_path):
    path = tmp_path / "secret"
    write_secret(str(path), "text")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret(str(path)) == "text"
    with pytest.raises(FileExistsError):
        write_secret(str(path), "other")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_may_use_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    write_secret(str(path), "text")
    path.chmod(mode)
    with pytest.raises(PermissionError, match="chmod 600"):
        read_secret(str(path))
