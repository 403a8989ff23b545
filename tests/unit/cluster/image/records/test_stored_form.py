"""The bytes of stored records: logs of any release since the first are read, and written, in exactly this form."""

from __future__ import annotations

import pytest

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.authentication.scram import ScramCredential, ScramMechanism
from flowstone.cluster.image.acl import Acl
from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint, PartitionImage
from flowstone.cluster.image.features import FeatureRange
from flowstone.cluster.image.records import (
    AclsCreated,
    AclsDeleted,
    BrokerConfigChanged,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnregistered,
    ClientMetricsChanged,
    ClientQuotaChanged,
    ClusterCreated,
    ControllerElected,
    DelegationTokensChanged,
    FeatureLevelChanged,
    GroupConfigChanged,
    MetadataRecord,
    PartitionChanged,
    PartitionsAdded,
    ProducerIdsReserved,
    ScramCredentialChanged,
    ScramCredentialRemoved,
    ScramSecretChosen,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    decode,
    encode,
)
from flowstone.cluster.image.records.declaration import RECORD_TYPES

ID = bytes(range(16))
LISTENERS = {"PLAINTEXT": Endpoint("h", 9092), "INSIDE": Endpoint("::1", 1)}
SETTLED = PartitionImage(1, 2, 3, (1, 2), (2, 1))
MOVING = PartitionImage(-1, 2, 3, (1, 2, 3), (), (3,), (1,))

RULE = Acl(2, "t\u00f6.pic", 3, "User:bob", "*", 4, 3)

STORED: list[tuple[MetadataRecord, str]] = [
    (
        AclsCreated((RULE,)),
        '{"type":"AclsCreated","version":1,"rules":[[2,"t\u00f6.pic",3,"User:bob","*",4,3]]}',
    ),
    (
        ClientQuotaChanged((("client-id", None), ("user", "b\u00fc")), {"request_percentage": 12.5, "x": None}),
        '{"type":"ClientQuotaChanged","version":1,"entity":[["client-id",null],["user","b\u00fc"]],'
        '"changes":{"request_percentage":12.5,"x":null}}',
    ),
    (
        AclsDeleted((RULE, RULE._replace(host="10.0.0.1"))),
        '{"type":"AclsDeleted","version":1,"rules":[[2,"t\u00f6.pic",3,"User:bob","*",4,3],'
        '[2,"t\u00f6.pic",3,"User:bob","10.0.0.1",4,3]]}',
    ),
    (ClusterCreated("Zxa-_"), '{"type":"ClusterCreated","version":1,"cluster_id":"Zxa-_"}'),
    (
        BrokerRegistered(BrokerImage(1, "rack-\u00fc", LISTENERS, "life", 7)),
        '{"type":"BrokerRegistered","version":1,"node_id":1,"rack":"rack-\u00fc","listeners":{"PLAINTEXT":["h",9092],'
        '"INSIDE":["::1",1]},"incarnation":"life","epoch":7,"fenced":false}',
    ),
    (
        BrokerRegistered(BrokerImage(2, None, {}, is_fenced=True)),
        '{"type":"BrokerRegistered","version":1,"node_id":2,"rack":null,"listeners":{},"incarnation":"","epoch":0,'
        '"fenced":true}',
    ),
    (
        BrokerRegistered(BrokerImage(2, None, {}, features={"share.version": FeatureRange(0, 2)})),
        '{"type":"BrokerRegistered","version":1,"node_id":2,"rack":null,"listeners":{},"incarnation":"","epoch":0,'
        '"fenced":false,"features":{"share.version":[0,2]}}',
    ),
    (BrokerFenced(1, 7), '{"type":"BrokerFenced","version":1,"node_id":1,"epoch":7}'),
    (BrokerUnregistered(1, 7), '{"type":"BrokerUnregistered","version":1,"node_id":1,"epoch":7}'),
    (
        ScramCredentialChanged("admin", ScramMechanism.SHA_512, ScramCredential(b"s", b"\x01", b"\xff", 4096)),
        '{"type":"ScramCredentialChanged","version":1,"user":"admin","mechanism":2,"credential":["73","01","ff",4096]}',
    ),
    (
        ScramCredentialRemoved("admin", ScramMechanism.SHA_256),
        '{"type":"ScramCredentialRemoved","version":1,"user":"admin","mechanism":1}',
    ),
    (
        DelegationTokensChanged((DelegationToken("i", "User:a", "User:b", ("User:c",), 1, 3, 2),), ("j",)),
        '{"type":"DelegationTokensChanged","version":1,"tokens":[["i","User:a","User:b",["User:c"],1,3,2]],'
        '"removed":["j"]}',
    ),
    (ScramSecretChosen(b"\x02"), '{"type":"ScramSecretChosen","version":1,"secret":"02"}'),
    (ControllerElected(2, 3), '{"type":"ControllerElected","version":1,"node_id":2,"epoch":3}'),
    (
        TopicCreated("t\u00f6.pic", ID, (SETTLED, MOVING), {"a": "1"}),
        '{"type":"TopicCreated","version":1,"name":"t\u00f6.pic","topic_id":"AAECAwQFBgcICQoLDA0ODw",'
        '"partitions":[[1,2,3,[1,2],[2,1]],[-1,2,3,[1,2,3],[],[3],[1]]],"configs":{"a":"1"}}',
    ),
    (
        PartitionsAdded(ID, (SETTLED,)),
        '{"type":"PartitionsAdded","version":1,"topic_id":"AAECAwQFBgcICQoLDA0ODw","partitions":[[1,2,3,[1,2],[2,1]]]}',
    ),
    (
        PartitionChanged(ID, 4, MOVING),
        '{"type":"PartitionChanged","version":1,"topic_id":"AAECAwQFBgcICQoLDA0ODw","partition":4,'
        '"state":[-1,2,3,[1,2,3],[],[3],[1]]}',
    ),
    (TopicDeleted(ID), '{"type":"TopicDeleted","version":1,"topic_id":"AAECAwQFBgcICQoLDA0ODw"}'),
    (
        TopicConfigChanged(ID, {"a": None, "b": '\u00fc"'}),
        '{"type":"TopicConfigChanged","version":1,"topic_id":"AAECAwQFBgcICQoLDA0ODw",'
        '"changes":{"a":null,"b":"\u00fc\\""}}',
    ),
    (
        BrokerConfigChanged("", {"x": None, "y": "2"}),
        '{"type":"BrokerConfigChanged","version":1,"broker":"","changes":{"x":null,"y":"2"}}',
    ),
    (
        ClientMetricsChanged("m", {"x": None, "y": "2"}),
        '{"type":"ClientMetricsChanged","version":1,"name":"m","changes":{"x":null,"y":"2"}}',
    ),
    (
        GroupConfigChanged("g", {"x": None, "y": "2"}),
        '{"type":"GroupConfigChanged","version":1,"group_id":"g","changes":{"x":null,"y":"2"}}',
    ),
    (ProducerIdsReserved(2**53), '{"type":"ProducerIdsReserved","version":1,"next_producer_id":9007199254740992}'),
    (
        FeatureLevelChanged("share.version", 2),
        '{"type":"FeatureLevelChanged","version":1,"name":"share.version","feature_level":2}',
    ),
]


@pytest.mark.parametrize(("record", "stored"), STORED)
def test_a_record_is_stored_in_exactly_these_bytes_and_read_back(record: MetadataRecord, stored: str) -> None:
    assert encode(record) == stored.encode()
    assert decode(stored.encode()) == record


def test_the_stored_form_of_every_record_type_is_fixed_here() -> None:
    assert {type(record) for record, _ in STORED} == set(RECORD_TYPES.values())


def test_a_registration_from_before_brokers_had_lives_is_read() -> None:
    stored = b'{"type":"BrokerRegistered","version":1,"node_id":1,"rack":null,"listeners":{"P":["h",1]}}'
    assert decode(stored) == BrokerRegistered(BrokerImage(1, None, {"P": Endpoint("h", 1)}))
