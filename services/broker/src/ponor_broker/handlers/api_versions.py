"""ApiVersions: which APIs and versions a client may use (KIP-35, KIP-511, KIP-584).

What lives here: the answer, and the check of the client's name. No feature is finalized whose APIs are missing: clients read from
`transaction.version` and `group.version` that they may use them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from ponor_kafka.api import ApiKey
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

from ponor_broker.dispatch import AdvertisedApi
from ponor_broker.handlers.registry import ApiHandler, RequestContext

VERSION_MIN: Final = 0
VERSION_MAX: Final = 4
CLIENT_NAME_VERSION_MIN: Final = 3
SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers with `advertised`, which is known only once all handlers are built."""

    def __init__(self, advertised: Callable[[], Sequence[AdvertisedApi]]) -> None:
        self._advertised = advertised

    @property
    def api(self) -> ApiHandler:
        """For the dispatcher."""
        return ApiHandler(ApiKey.API_VERSIONS, VERSION_MIN, VERSION_MAX, self.handle)

    async def handle(
        self, request: ApiVersionsRequest | None, context: RequestContext
    ) -> ApiVersionsResponse:
        """`request` is None for a version that is not known: then the answer is version 0 and holds only our own range."""
        if request is None:
            own = ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=VERSION_MIN, max_version=VERSION_MAX)
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
        if context.api_version >= CLIENT_NAME_VERSION_MIN:
            name, version = request.client_software_name, request.client_software_version
            if SOFTWARE_NAME.fullmatch(name) is None or SOFTWARE_NAME.fullmatch(version) is None:
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.connection.client_software_name = name
            context.connection.client_software_version = version
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=row.key, min_version=row.version_min, max_version=row.version_max)
                for row in self._advertised()
            ]
        )
