"""A FastStream service: doubles the numbers of one topic into another, with the backend that is named first."""

import asyncio
import sys

backend, bootstrap, source, target = sys.argv[1:]
if backend == "confluent":
    from faststream.confluent import KafkaBroker
else:
    from faststream.kafka import KafkaBroker

from faststream import AckPolicy, FastStream  # noqa: E402

broker = KafkaBroker(bootstrap)


@broker.subscriber(
    source, group_id=f"doubling-{backend}", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR
)
@broker.publisher(target)
async def double(number: int) -> int:
    return 2 * number


asyncio.run(FastStream(broker).run())
