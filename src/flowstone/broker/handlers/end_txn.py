"""EndTxn, versions 0 to 5: commits or aborts a transaction; the response is sent once the decision is committed.

The markers in the partitions are written afterwards. Since version 5 each transaction raises the producer epoch, and
the response has the producer id and epoch of the next one (KIP-890). Versions before 2 do not know PRODUCER_FENCED.
"""

from __future__ import annotations

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.coordinators.transaction_answers import told
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.coordinator.transactions.messages import V1, V2, EndTransactionRequest, EndTransactionResponse
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import EndTxnRequest, EndTxnResponse

_V2_SINCE_VERSION = 5


def handle(services: Services, context: RequestContext, request: EndTxnRequest) -> Promise[EndTxnResponse]:
    end = EndTransactionRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        V2 if context.api_version >= _V2_SINCE_VERSION else V1,
    )

    def respond(response: EndTransactionResponse) -> EndTxnResponse:
        return EndTxnResponse(
            error_code=told(context.api_key, context.api_version, response.error_code),
            producer_id=response.producer_id,
            producer_epoch=response.producer_epoch,
        )

    def refuse(code: ErrorCode) -> EndTxnResponse:
        return EndTxnResponse(error_code=told(context.api_key, context.api_version, code))

    return services.transactions.request(
        end.transactional_id,
        lambda shard, now_ms, token: shard.end_transaction(now_ms, token, end),
        Answer(respond, refuse),
    )
