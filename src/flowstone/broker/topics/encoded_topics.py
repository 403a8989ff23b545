"""Long responses about topics, assembled from cached parts.

Describing thirty thousand partitions takes a tenth of a second, and the clients of a large cluster request all of them
again and again. The bytes of a topic depend on the topic, on the brokers and on the requester (`Form`), so they are
cached as long as these are the same. Missing parts are encoded some partitions at a time, and other requests run in
between.

Invariant: the bytes equal what the codec makes of the same response.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple, cast

from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.topics.topic_descriptions import Form, describe
from flowstone.cluster.image.cluster_image import BrokerImage, ClusterImage, TopicImage
from flowstone.wire.codec import Encoder, compile_encoder, response_encoder
from flowstone.wire.message import Message
from flowstone.wire.messages import MetadataResponse, MetadataResponseTopic
from flowstone.wire.primitives import encode_uvarint
from flowstone.wire.schema import load_api

METADATA_KEY = 3
# A response with fewer partitions is encoded at once, in about two milliseconds.
PARTS_PARTITIONS_MIN = 1_000
# Partitions encoded in one time slice.
SLICE_PARTITIONS = 500
# The cost of a cached topic, in partitions.
KNOWN_PARTITION = 0.05
# Cached forms; each takes some hundred bytes per topic and sixty per partition. Most clients of a cluster share one.
FORMS_MAX = 4

_INT32 = Struct(">i")
_load_api = cache(load_api)

# An existing topic, or the response's entry for a missing one.
Topic = TopicImage | MetadataResponseTopic


class _Part(NamedTuple):
    data: bytes
    errors: Counter[int]


class _Parts:
    """The cached parts of one form, valid while the brokers stay the same."""

    def __init__(self, brokers: Mapping[int, BrokerImage]) -> None:
        self.brokers = brokers
        self.by_name: dict[str, tuple[TopicImage, _Part]] = {}
        # All topics in one part, and the map that they are of: most of the longest responses are the same.
        self.all = _Part(b"", Counter())
        self.all_of: Mapping[str, TopicImage] | None = None


class MetadataParts:
    def __init__(self) -> None:
        self._forms: OrderedDict[Form, _Parts] = OrderedDict()
        # Held while parts are encoded: of many requests after a change, the first one encodes for all.
        self._lock = asyncio.Lock()

    async def encode_all(self, response: MetadataResponse, image: ClusterImage, form: Form) -> EncodedResponse:
        """Return the response with all topics of the image."""
        async with self._lock:
            parts = self._parts(form, image)
            if parts.all_of is not image.topics:
                parts.all = await self._join(parts, image, image.topics.values(), form)
                parts.all_of = image.topics
                parts.by_name = {name: part for name, part in parts.by_name.items() if name in image.topics}
        return _put_together(response, parts.all, len(image.topics), form.api_version)

    async def encode_some(
        self, response: MetadataResponse, image: ClusterImage, topics: Sequence[Topic], form: Form
    ) -> EncodedResponse:
        """Return the response with these topics."""
        async with self._lock:
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
        left_partitions: float = SLICE_PARTITIONS
        for topic in topics:
            if left_partitions <= 0:
                left_partitions = SLICE_PARTITIONS
                await yield_to_loop()
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
    """Insert the encoded topics into the encoded response, which has none itself."""
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
