"""Responses that are too long to be encoded in one time slice of the loop, whatever the size of the request."""

from __future__ import annotations

from typing import cast

from flowstone.broker.loop.time_slices import BATCH_ITEMS, TimeSlices, run_in_slices
from flowstone.broker.requests.broker_metrics import RequestMetrics
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.wire.apis import APIS
from flowstone.wire.codec import sliced_response_encoder
from flowstone.wire.message import Message

# A response with fewer elements is encoded at once, in a few milliseconds.
LONG_RESPONSE_ELEMENTS = 2_000


async def encode_if_long(
    services: Services, context: RequestContext, response: Message, elements: int, slices: TimeSlices
) -> Message:
    """Return the response, encoded in slices if it is long.

    It stays a message under a test's wire faults, which change messages.
    """
    if elements < LONG_RESPONSE_ELEMENTS or services.intercept is not None:
        return response
    if context.complete is not None:
        response = context.complete(response)
    return await encode_in_slices(context, services.metrics.request(APIS[context.api_key].name), response, slices)


async def encode_in_slices(
    context: RequestContext, metrics: RequestMetrics, response: Message, slices: TimeSlices
) -> EncodedResponse:
    """Return the response, encoded in several time slices of the loop. The message is emptied."""
    encode = sliced_response_encoder(context.api_key, context.api_version)
    chunks = cast(list[bytes], await run_in_slices(encode(response), slices))
    await slices.yield_if_due()
    errors = metrics.errors_in(response)
    await release(response, slices)
    return EncodedResponse(chunks, errors)


async def release(message: Message, slices: TimeSlices) -> None:
    """Empty the long lists of an obsolete message, some elements at a time.

    Freeing a hundred thousand objects at once takes tens of milliseconds.
    """
    for name in message.__slots__:
        value = getattr(message, name, None)
        if not isinstance(value, list):
            continue
        if len(value) <= BATCH_ITEMS:
            for element in value:
                if isinstance(element, Message):
                    await release(element, slices)
        while value:
            del value[-BATCH_ITEMS:]
            await slices.yield_if_due()
