"""Long answers about topics, put together from parts that were encoded before.

To describe thirty thousand partitions takes a tenth of a second, and the clients of a large cluster ask for all of them
again and again. A topic's bytes depend on the topic, on the brokers and on who asks (`Form`), so they are kept for as
long as these are the same. What has to be encoded anew is, some partitions at a time: others have their turn in
between.

Invariant: the bytes are those that the codec makes of the same response.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple, cast

from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.topics.topic_descriptions import Form, describe
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, TopicImage
from flowstone.wire.codec import Encoder, compile_encoder, response_encoder
from flowstone.wire.message import Message
from flowstone.wire.messages import MetadataResponse, MetadataResponseTopic
from flowstone.wire.primitives import encode_uvarint
from flowstone.wire.schema import load_api

METADATA_KEY = 3
# An answer about fewer is made at once: it takes two milliseconds or so.
PARTS_PARTITIONS_MIN = 1_000
# Encoded before others have their turn.
TURN_PARTITIONS = 500
# What a topic that is encoded already counts for among them.
KNOWN_PARTITION = 0.05
# Each takes some hundred bytes per topic and sixty per partition. The clients of a cluster are mostly of one kind.
FORMS_MAX = 4

_INT32 = Struct(">i")
_load_api = cache(load_api)

# A topic there is, or what is said of one that there is not.
Topic = TopicImage | MetadataResponseTopic


class _Part(NamedTuple):
    data: bytes
    errors: Counter[int]


class _Parts:
    """The topics of one form, as long as the brokers are these."""

    def __init__(self, brokers: Mapping[int, BrokerImage]) -> None:
        self.brokers = brokers
        self.by_name: dict[str, tuple[TopicImage, _Part]] = {}
        # All of them in one, and of which map they are: the longest answers are mostly the same one again.
        self.all = _Part(b"", Counter())
        self.all_of: Mapping[str, TopicImage] | None = None


class MetadataParts:
    def __init__(self) -> None:
        self._forms: OrderedDict[Form, _Parts] = OrderedDict()
        # Many may ask at once after a change: what the first one makes is there for the others.
        self._turn = asyncio.Lock()

    async def encode_all(self, response: MetadataResponse, image: ClusterImage, form: Form) -> EncodedResponse:
        """The response with all topics of the image."""
        async with self._turn:
            parts = self._parts(form, image)
            if parts.all_of is not image.topics:
                parts.all = await self._join(parts, image, image.topics.values(), form)
                parts.all_of = image.topics
                parts.by_name = {name: part for name, part in parts.by_name.items() if name in image.topics}
        return _put_together(response, parts.all, len(image.topics), form.api_version)

    async def encode_some(
        self, response: MetadataResponse, image: ClusterImage, topics: Sequence[Topic], form: Form
    ) -> EncodedResponse:
        """The response with these topics."""
        async with self._turn:
            joined = await self._join(self._parts(form, image), image, topics, form)
        return _put_together(response, joined, len(topics), form.api_version)

    def _parts(self, form: Form, image: ClusterImage) -> _Parts:
        parts = self._forms.pop(form, None)
        if parts is None or parts.brokers is not image.brokers:
            parts = _Parts(image.brokers)
        self._forms[form] = parts
        if len(self._forms) > FORMS_MAX:
            self._forms.popitem(last=False)
        return parts

    async def _join(self, parts: _Parts, image: ClusterImage, topics: Iterable[Topic], form: Form) -> _Part:
        data: list[bytes] = []
        errors: Counter[int] = Counter()
        left_partitions: float = TURN_PARTITIONS
        for topic in topics:
            if left_partitions <= 0:
                left_partitions = TURN_PARTITIONS
                await others_turn()
            if isinstance(topic, MetadataResponseTopic):
                left_partitions -= 1
                part = _encode(topic, form)
            else:
                known = parts.by_name.get(topic.name)
                left_partitions -= KNOWN_PARTITION
                if known is None or known[0] is not topic:
                    left_partitions -= 1 + len(topic.partitions)
                    known = parts.by_name[topic.name] = (topic, _encode(describe(image, topic, form), form))
                part = known[1]
            data.append(part.data)
            if part.errors:
                errors.update(part.errors)
        return _Part(b"".join(data), errors)


def _encode(topic: MetadataResponseTopic, form: Form) -> _Part:
    codes = [topic.error_code, *(partition.error_code for partition in topic.partitions)]
    return _Part(_bytes_of(_topic_encoder(form.api_version), topic), Counter(filter(None, codes)))


def _put_together(response: MetadataResponse, topics: _Part, count: int, version: int) -> EncodedResponse:
    """The topics in their place within the response, which has none itself."""
    encode = response_encoder(METADATA_KEY, version)
    without = _bytes_of(encode, response)
    response.topics = [MetadataResponseTopic(name="")]
    with_one = _bytes_of(encode, response)
    # The first difference is the last byte of the array's length, 1 instead of 0.
    length_end = next(at for at, (one, none) in enumerate(zip(with_one, without, strict=False)) if one != none) + 1
    is_flexible = _load_api("Metadata").is_flexible(version)
    length = encode_uvarint(count + 1) if is_flexible else _INT32.pack(count)
    length_start = length_end - (1 if is_flexible else _INT32.size)
    return EncodedResponse([without[:length_start] + length, topics.data, without[length_end:]], topics.errors)


@cache
def _topic_encoder(version: int) -> Encoder:
    schema = _load_api("Metadata")
    topic = next(field.struct for field in schema.response.fields if field.name == "topics")
    assert topic is not None
    return compile_encoder(topic, version, schema.is_flexible(version))


def _bytes_of(encode: Encoder, message: Message) -> bytes:
    return b"".join(cast(list[bytes], encode(message)))
