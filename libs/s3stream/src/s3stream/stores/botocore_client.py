"""Access to one bucket by aiobotocore: creates the client and translates its errors.

Every call is one attempt, as with obstore; `retrying.py` repeats calls. Payloads are signed only if
the location requires it. The first call creates the client, because that needs a running event
loop. The client's service model takes about 30 MiB, so only processes that need it create one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from ponor_runtime.object_store import check_key

from s3stream.stores.botocore_errors import BOTOCORE_ERRORS, as_store_error
from s3stream.stores.s3_location import S3Location

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
CONNECTIONS_MAX: Final = 64


class BotocoreBucket:
    """A bucket, or a prefix of one. The store of whole objects and the multipart store share it."""

    def __init__(self, location: S3Location) -> None:
        self.location: Final = str(location)
        self.name: Final = location.bucket
        self._settings: Final = location
        self._key_prefix: Final = f"{location.prefix}/" if location.prefix else ""
        self._making = asyncio.Lock()
        self._open = AsyncExitStack()
        self._client: Any = None

    async def client(self) -> Any:
        """Return the S3 client, which is created once."""
        async with self._making:
            if self._client is None:
                self._client = await self._open.enter_async_context(_client_of(self._settings))
            return self._client

    def full_key(self, key: str) -> str:
        """Return the key at the server.

        Raises:
            ValueError: the key breaks the rules.
        """
        return self._key_prefix + check_key(key)

    def full_prefix(self, prefix: str) -> str:
        """Return a key prefix at the server."""
        return self._key_prefix + prefix

    def own_key(self, full_key: str) -> str:
        """Return the port's key for a key at the server."""
        return full_key.removeprefix(self._key_prefix)

    @contextmanager
    def as_store_error(self, key: str) -> Iterator[None]:
        """Translate errors of a call into errors of the port."""
        try:
            yield
        except BOTOCORE_ERRORS as error:
            raise as_store_error(self.location, key, error) from error

    async def close(self) -> None:
        """Close the connections; a later call would create new ones."""
        async with self._making:
            self._client = None
            await self._open.aclose()


def _client_of(location: S3Location) -> Any:
    return get_session().create_client(
        "s3",
        region_name=location.region,
        endpoint_url=location.endpoint or None,
        aws_access_key_id=location.access_key_id or None,
        aws_secret_access_key=location.secret_access_key or None,
        aws_session_token=location.session_token or None,
        config=AioConfig(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=CONNECTIONS_MAX,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={
                "addressing_style": "virtual" if location.virtual_hosted else "path",
                "payload_signing_enabled": not location.unsigned_payload,
            },
        ),
    )
