"""AlterUserScramCredentials, version 0: set and delete SCRAM credentials of users, all those of a user or none.

The client derives the salted password; the broker stores two keys made from it. A change applies to logins from then
on; connections stay.
"""

from __future__ import annotations

import logging
from secrets import token_bytes

from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.scram_changes import Deletion, Outcomes, Upsertion, alter_credentials
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseAlterUserScramCredentialsResult,
)

logger = logging.getLogger(__name__)
Result = AlterUserScramCredentialsResponseAlterUserScramCredentialsResult

# Changes in one request, which are decided and stored at once.
CHANGES_MAX = 1000


async def handle(
    services: Services, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    deletions = [Deletion(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        Upsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in request.upsertions
    ]
    users = dict.fromkeys([*(each.user for each in deletions), *(each.user for each in upsertions)])
    if len(deletions) + len(upsertions) > CHANGES_MAX:
        message = f"{len(deletions) + len(upsertions)} changes in one request; the limit is {CHANGES_MAX}"
        return _response(dict.fromkeys(users, ApiError(ErrorCode.INVALID_REQUEST, message)))

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        return alter_credentials(image, deletions, upsertions, token_bytes)

    try:
        outcomes = await change(services, decide)
    except ApiError as error:
        return _response(dict.fromkeys(users, error))
    changed = [user for user, error in outcomes.items() if error is None]
    if changed:
        session = context.session
        services.audit("users.altered", **client_fields(session), users=changed)
        logger.info("%s from %s changed the credentials of %s", session.principal, session.peer, ", ".join(changed))
    return _response(outcomes)


def _response(outcomes: Outcomes) -> AlterUserScramCredentialsResponse:
    results = [
        Result(
            user=user,
            error_code=error.code if error else ErrorCode.NONE,
            error_message=error.message if error else None,
        )
        for user, error in outcomes.items()
    ]
    return AlterUserScramCredentialsResponse(results=results)
