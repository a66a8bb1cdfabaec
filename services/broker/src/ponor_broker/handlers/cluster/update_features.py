"""UpdateFeatures: raises levels of the cluster's features (KIP-584, KIP-1022).

Levels never fall, so there are no downgrades. The leading controller decides whether every
controller and node supports a level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import quorum_service_pb2 as wire
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ponor_metadata.client.leader_calls import NoControllerError
from ponor_metadata.client.quorum_client import QuorumClient
from ponor_rpc.errors import OperationError

from ponor_broker.handlers.cluster.api_versions import FEATURE_PREFIX
from ponor_broker.requests.api_handler import RequestContext

UPGRADE: Final = 1
LAST_VERSION_WITH_RESULTS: Final = 1
TIMEOUT_MS_MAX: Final = 60_000
_CODES: Final[Mapping[int, ErrorCode]] = {
    error_pb2.ERROR_CODE_INVALID_REQUEST: ErrorCode.INVALID_UPDATE_VERSION,
}


async def update_features(
    quorum: QuorumClient, request: UpdateFeaturesRequest, context: RequestContext
) -> UpdateFeaturesResponse:
    """Apply all updates of a request or none, as Kafka does since version 2. An empty request succeeds."""
    if not request.feature_updates:
        return _answer(request, context, ErrorCode.NONE, None)
    for update in request.feature_updates:
        refusal = _refusal(update)
        if refusal is not None:
            return _answer(request, context, ErrorCode.INVALID_UPDATE_VERSION, refusal)
    updates = [
        wire.FeatureUpdate(name=update.feature.removeprefix(FEATURE_PREFIX), level=update.max_version_level)
        for update in request.feature_updates
    ]
    body = wire.UpdateFeatures(updates=updates, validate_only=request.validate_only)
    timeout_s = min(max(request.timeout_ms, 1), TIMEOUT_MS_MAX) / 1000
    try:
        await quorum.ask(wire.QuorumRequest(update_features=body), timeout_s=timeout_s)
    except NoControllerError as error:
        return _answer(request, context, ErrorCode.REQUEST_TIMED_OUT, str(error))
    except OperationError as error:
        code = _CODES.get(error.code, ErrorCode.FEATURE_UPDATE_FAILED)
        return _answer(request, context, code, error.message)
    return _answer(request, context, ErrorCode.NONE, None)


def _refusal(update: FeatureUpdateKey) -> str | None:
    if not update.feature.startswith(FEATURE_PREFIX):
        return (
            f"feature {update.feature} is unknown; names of this cluster's features start with"
            f" {FEATURE_PREFIX}"
        )
    if update.allow_downgrade or update.upgrade_type != UPGRADE or update.max_version_level < 1:
        return (
            f"{update.feature}: a level can only be raised, because the log may contain records of the"
            " current level"
        )
    return None


def _answer(
    request: UpdateFeaturesRequest, context: RequestContext, code: ErrorCode, message: str | None
) -> UpdateFeaturesResponse:
    results = []
    if context.api_version <= LAST_VERSION_WITH_RESULTS and code is ErrorCode.NONE:
        results = [UpdatableFeatureResult(update.feature) for update in request.feature_updates]
    return UpdateFeaturesResponse(error_code=code, error_message=message, results=results)
