"""UpdateFeatures, versions 0 to 2: finalize feature levels for the whole cluster, all of those named or none.

Any broker can make the decision, as with every change of the metadata. Since version 1 a request says whether it is an
upgrade, a safe or an unsafe downgrade, and may only be validated. As in Kafka, an error is that of the whole request;
versions 0 and 1 list the features if there was none.
"""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.feature_changes import FeatureUpdate, UpgradeType, update_features
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdate,
    UpdateFeaturesResponse,
    UpdateFeaturesResponseResult,
)

# Features in one request: far more than exist, and few enough to be checked in one time slice.
UPDATES_MAX = 100


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if len(request.feature_updates) > UPDATES_MAX:
        message = f"{len(request.feature_updates)} features in one request; the limit is {UPDATES_MAX}"
        return UpdateFeaturesResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=message)
    updates = [_update(each, context.api_version) for each in request.feature_updates]

    def decide(image: ClusterImage) -> Decision[None]:
        records, result = update_features(image, updates)
        return [] if request.validate_only else records, result

    try:
        await change(services, decide, request.timeout_ms)
    except ApiError as error:
        message = f"The update failed for all features since the following feature had an error: {error.message}"
        return UpdateFeaturesResponse(error_code=error.code, error_message=message)
    return UpdateFeaturesResponse(results=[UpdateFeaturesResponseResult(feature=each.name) for each in updates])


def _update(update: UpdateFeaturesRequestFeatureUpdate, api_version: int) -> FeatureUpdate:
    upgrade_type = update.upgrade_type
    if api_version == 0 and update.allow_downgrade:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE
    return FeatureUpdate(update.feature, update.max_version_level, upgrade_type)
