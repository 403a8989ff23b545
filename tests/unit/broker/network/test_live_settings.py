"""Settings of compaction that are altered while a broker runs."""

from __future__ import annotations

from pathlib import Path

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp

BROKER = 4
RATE = "log.cleaner.io.max.bytes.per.second"


def rates(app: RunningApp) -> set[float]:
    return {each.cleaner._config.log_cleaner_io_max_bytes_per_second for each in app.app.services.logs.directories}


def test_an_altered_rate_of_compaction_holds_at_once_and_after_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        config = m.IncrementalAlterConfigsRequestConfig(name=RATE, config_operation=0, value="12345")
        resource = m.IncrementalAlterConfigsRequestResource(resource_type=BROKER, resource_name="", configs=[config])
        (answer,) = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource])).responses
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        assert rates(app) == {12345.0}
    with RunningApp(str(tmp_path)) as app:
        assert rates(app) == {12345.0}
