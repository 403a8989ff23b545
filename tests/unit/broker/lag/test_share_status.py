"""Share groups on `/groups` and `/metrics`, while a queue holds some records of theirs."""

from __future__ import annotations

import json
import time
from typing import Any

import flowstone
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

WAIT_S = 20.0


def until(app: RunningApp, condition: Any) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        (group,) = json.loads(app.get("/groups?group=workers")[1])["groups"]
        if condition(group["partitions"][0]):
            return dict(group)
        assert time.monotonic() < deadline, group
        time.sleep(0.02)


def test_a_share_group_is_shown_with_its_lag_and_what_is_in_flight(tmp_path: Any) -> None:
    with RunningApp(str(tmp_path), default_http="127.0.0.1:0") as app:
        with app.client() as client:
            client.create_topic("tasks")
            client.produce("tasks", bytes(batch_of(b"a", b"b", b"c", b"d")))
        bootstrap = "{}:{}".format(*app.app.addresses["PLAINTEXT"])
        with flowstone.Queue("tasks", group="workers", bootstrap=bootstrap, in_flight=2) as queue:
            first, second = queue.get(WAIT_S), queue.get(WAIT_S)
            assert first is not None
            assert second is not None
            first.accept()
            group = until(app, lambda each: each["committed_offset"] == 1 and each["in_flight"] == 2)
            assert (group["type"], group["state"], group["lag"]) == ("share", "Stable", 3)
            assert group["lag_seconds"] > 0
            assert group["members"][0]["partitions"] == [{"topic": "tasks", "partition": 0}]
        group = until(app, lambda each: not each["in_flight"])
        assert (group["state"], group["lag"]) == ("Empty", 3)
        assert app.get("/groups?group=nobody")[1].startswith('{"groups": []')
