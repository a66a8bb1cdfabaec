"""ApiVersions: which APIs and versions a client may use (KIP-35, KIP-511, KIP-584, KIP-1242).

The answer contains the features of Kafka whose APIs this broker has, and the cluster's own features
under the prefix `ponor.`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ponor_metadata.nouns.cluster import FEATURES

from ponor_broker.partitions.topics.topics import Topics
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.requests.dispatch import AdvertisedApi
from ponor_broker.serving import Serving

VERSION_MIN: Final = 0
VERSION_MAX: Final = 5
CLIENT_NAME_VERSION_MIN: Final = 3
IDENTITY_VERSION_MIN: Final = 5
ANY_NODE: Final = -1
FEATURE_PREFIX: Final = "ponor."
TRANSACTION_VERSION: Final = SupportedFeatureKey("transaction.version", 0, 2)
"""Finalized at its highest level, so that producers which support generation 2 use it (KIP-890)."""
GROUP_VERSION: Final = SupportedFeatureKey("group.version", 0, 1)
"""Finalized at 1: clients may use consumer groups (KIP-848)."""
SHARE_VERSION: Final = SupportedFeatureKey("share.version", 0, 1)
"""Finalized at 1: clients may use share groups (KIP-932)."""
STREAMS_VERSION: Final = SupportedFeatureKey("streams.version", 0, 1)
"""Finalized at 1: Kafka Streams applications may use streams groups (KIP-1071)."""
KAFKA_FEATURES: Final = (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION, TRANSACTION_VERSION)
ZERO_LEVELS_VERSION_MIN: Final = 4
"""Older clients cannot decode a supported feature whose lowest level is 0 (KIP-1022)."""
SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers with `advertised`, which is set after all handlers are built."""

    def __init__(
        self,
        advertised: Callable[[], Sequence[AdvertisedApi]],
        topics: Topics,
        serving: Serving,
        *,
        node_id: int,
    ) -> None:
        self._advertised = advertised
        self._topics = topics
        self._serving = serving
        self._node_id = node_id
        self._answered: tuple[int, dict[bool, ApiVersionsResponse]] | None = None

    async def handle(
        self, request: ApiVersionsRequest | None, context: RequestContext
    ) -> ApiVersionsResponse:
        """Return the APIs. `request` is None for an unsupported version: the answer then has version 0 and
        contains only the versions of ApiVersions.
        """
        if request is None:
            own = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=VERSION_MIN, max_version=VERSION_MAX)
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
        if context.api_version >= CLIENT_NAME_VERSION_MIN:
            name, version = request.client_software_name, request.client_software_version
            if SOFTWARE_NAME.fullmatch(name) is None or SOFTWARE_NAME.fullmatch(version) is None:
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.connection.client_software_name = name
            context.connection.client_software_version = version
        if context.api_version >= IDENTITY_VERSION_MIN and not self._is_supported(request):
            return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        return self._answer(has_zero_levels=context.api_version >= ZERO_LEVELS_VERSION_MIN)

    def _is_supported(self, request: ApiVersionsRequest) -> bool:
        """Return whether the request is for this node and cluster: an address may have moved to another."""
        if request.cluster_id is not None and request.cluster_id != self._topics.cluster_id:
            return False
        return request.node_id in {ANY_NODE, self._node_id}

    def _answer(self, *, has_zero_levels: bool) -> ApiVersionsResponse:
        """Return the answer, which is cached until the image changes: every new connection sends this
        request, and two thirds of the request's cost was to build the answer.
        """
        if self._serving.refusal is not None:
            # The list of APIs is valid without permission to answer; the cluster's features may be outdated.
            return ApiVersionsResponse(api_keys=self._api_keys())
        index = self._topics.image.index
        if self._answered is None or self._answered[0] != index:
            self._answered = index, {whole: self._build_answer(whole) for whole in (False, True)}
        return self._answered[1][has_zero_levels]

    def _build_answer(self, has_zero_levels: bool) -> ApiVersionsResponse:
        rows = [
            (FEATURE_PREFIX + feature.name.removeprefix(FEATURE_PREFIX), feature.level)
            for feature in self._topics.image[FEATURES]
        ]
        supported = [SupportedFeatureKey(name, 1, level) for name, level in rows]
        if has_zero_levels:
            supported.extend(KAFKA_FEATURES)
        rows.extend((feature.name, feature.max_version) for feature in KAFKA_FEATURES)
        return ApiVersionsResponse(
            api_keys=self._api_keys(),
            supported_features=supported,
            finalized_features_epoch=self._topics.image.index,
            finalized_features=[FinalizedFeatureKey(name, level, level) for name, level in rows],
        )

    def _api_keys(self) -> list[ApiVersion]:
        return [
            ApiVersion(api_key=row.key, min_version=row.version_min, max_version=row.version_max)
            for row in self._advertised()
        ]
