"""DescribeUserScramCredentials, version 0: which users have SCRAM credentials, and their iterations. No secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flowstone.authentication.scram import ScramCredential, ScramMechanism
from flowstone.broker.loop.time_slices import TimeSlices, batched
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredentialInfo,
    DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult,
)

Result = DescribeUserScramCredentialsResponseDescribeUserScramCredentialsResult
Info = DescribeUserScramCredentialsResponseCredentialInfo
Stored = Mapping[tuple[str, ScramMechanism], ScramCredential]


async def handle(services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest) -> Message:
    stored = services.metadata.image.scram_credentials
    slices = TimeSlices(services.clock.monotonic)
    counts: Counter[str] = Counter()
    async for some in slices.over(batched(request.users or ())):
        counts.update(each.name for each in some)
    users: Iterable[str] = counts or sorted({user for user, _ in stored})
    results = [_describe(stored, user, counts[user]) async for user in slices.over(users)]
    response = DescribeUserScramCredentialsResponse(error_message=None, results=results)
    return await encode_if_long(services, context, response, 2 * len(results), slices)


def _describe(stored: Stored, user: str, count: int) -> Result:
    if count > 1:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        return Result(user=user, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=message)
    infos = [
        Info(mechanism=mechanism, iterations=credential.iterations)
        for mechanism in ScramMechanism
        if (credential := stored.get((user, mechanism))) is not None
    ]
    if not infos:
        message = f"Attempt to describe a user credential that does not exist: {user}"
        return Result(user=user, error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message=message)
    return Result(user=user, error_message=None, credential_infos=infos)
