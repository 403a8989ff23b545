"""Members of share groups whose rights change while they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowstone.cluster.decisions.acl_operations import AclOperation as Op
from flowstone.cluster.decisions.acl_operations import ResourceType as Kind
from flowstone.cluster.image.acl import DENY
from flowstone.wire import messages as m
from tests.support.acl_clients import app_with_rules, user
from tests.support.sharing.share_client import GROUP, Sharer, begin, topic_id_of
from tests.support.wire_client import batch_of, produce_request

DENIED = 29


def test_a_member_reads_what_it_may_and_loses_a_topic_that_is_denied_later(tmp_path: Path) -> None:
    with app_with_rules(str(tmp_path)) as app, user(app) as admin, user(app, "bob") as bob:
        topic = m.CreateTopicsRequestTopic(name="t", num_partitions=1, replication_factor=1)
        admin.ask(5, m.CreateTopicsRequest(topics=[topic]))
        as_client: Any = admin
        topic_id = topic_id_of(as_client, "t")
        begin(as_client, topic_id, start_offset=0)
        admin.ask(9, produce_request("t", batch_of(b"a")))
        as_client = bob
        member = Sharer(as_client, topic_id)
        assert member.fetch().error_code == 30
        admin.allow("bob", Op.READ, Kind.GROUP, GROUP)
        refused = member.fetch(wait_ms=0)
        assert codes(refused) == {0: DENIED}
        assert not refused.responses[0].partitions[0].records
        admin.allow("bob", Op.READ, Kind.TOPIC, "t")
        assert [each.value for each in member.take()] == [b"a"]
        admin.ask(9, produce_request("t", batch_of(b"b")))
        admin.allow("bob", Op.READ, Kind.TOPIC, "t", permission=DENY)
        # The topic is in the session: the request does not name it.
        member.epoch += 1
        request = m.ShareFetchRequest(
            group_id=GROUP,
            member_id="m",
            share_session_epoch=member.epoch - 1,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=[],
            forgotten_topics_data=[],
        )
        response = bob.ask(2, request)
        assert response.error_code == 0
        assert codes(response) == {0: DENIED}
        assert not response.responses[0].partitions[0].records


def codes(response: Any) -> dict[int, int]:
    return {each.partition_index: each.error_code for topic in response.responses for each in topic.partitions}
