"""Client of a schema registry: the part of its HTTP API that readers need.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html

GETs are retried within a bound, and the answers are cached. A schema never changes under its id, so each
Python worker of an executor requests it once, however many tasks run there. Credentials come from the
environment of driver and executors (AUTH_VARIABLE), never from options.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from ponor_spark.errors import OptionError, PonorSparkError

AUTH_VARIABLE: Final = "PONOR_SCHEMA_REGISTRY_AUTH"
"""USER:PASSWORD."""
ATTEMPTS_MAX: Final = 6
PAUSE_S_FIRST: Final = 0.2
PAUSE_S_MAX: Final = 5.0
CALL_S_MAX: Final = 10.0
ANSWER_BYTES_MAX: Final = 16 << 20
SCHEMAS_MAX: Final = 1_000
"""Maximum schemas cached by one worker, with LRU eviction."""
REGISTRIES_MAX: Final = 8
PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})
"""Transient client errors; server errors (5xx) are transient too."""


class RegistryUnavailableError(PonorSparkError):
    """The registry does not answer, or refuses this reader.

    The task fails: without the schema it is unknown whether its rows can be decoded.
    """


class SchemaUnknownError(Exception):
    """The registry answers and does not have the schema."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema referenced by another one."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of the registry.

    `kind`: AVRO, PROTOBUF or JSON. `text`: in the kind's own language; for Protobuf a base64
    FileDescriptorProto if the registry supports it.
    """

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class Registry:
    """One registry. Blocking."""

    def __init__(
        self,
        url: str,
        *,
        auth: str = "",
        attempts_max: int = ATTEMPTS_MAX,
        pause: Callable[[float], None] = time.sleep,  # noqa: TID251 - a task's thread waits for nothing else
    ) -> None:
        """Create a client without a request.

        Raises:
            OptionError: not an HTTP URL, or one that contains credentials.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise OptionError(
                f"registry: {url} is not an http or https URL; write for example http://registry:8081"
            )
        if "@" in parts.netloc:
            raise OptionError(
                "registry: plans and logs would show the credentials in the URL; give USER:PASSWORD in the"
                f" variable {AUTH_VARIABLE}"
            )
        self._url = url.rstrip("/")
        self._auth = auth
        self._attempts_max = attempts_max
        self._pause = pause
        self._by_id = functools.lru_cache(SCHEMAS_MAX)(self._ask_schema)
        self._by_version = functools.lru_cache(SCHEMAS_MAX)(self._ask_version)

    def schema(self, schema_id: int) -> Schema:
        """Return a schema by its id; requested once.

        Raises:
            SchemaUnknownError: there is none.
            RegistryUnavailableError: the registry does not answer or refuses.
        """
        return self._by_id(schema_id)

    def version(self, subject: str, version: int | str) -> Schema:
        """Return a subject's schema; `version` "latest" is also requested once."""
        return self._by_version(subject, version)

    def _ask_schema(self, schema_id: int) -> Schema:
        path = f"/schemas/ids/{schema_id}"
        return self._whole(self._get(path), path)

    def _ask_version(self, subject: str, version: int | str) -> Schema:
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if answer.get("schemaType") == "PROTOBUF" and "id" in answer:
            return self.schema(int(answer["id"]))
        return _schema_of(answer)

    def _whole(self, answer: dict[str, Any], path: str) -> Schema:
        """Request Protobuf a second time in the form that needs no compiler; a registry without this
        form returns the text again.
        """
        if answer.get("schemaType") == "PROTOBUF":
            answer = {
                **answer,
                "schema": self._get(f"{path}?format=serialized").get("schema", answer["schema"]),
            }
        return _schema_of(answer)

    def _get(self, path: str) -> dict[str, Any]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if self._auth:
            headers["Authorization"] = "Basic " + base64.b64encode(self._auth.encode()).decode()
        request = Request(self._url + path, headers=headers)  # noqa: S310 - the scheme was checked
        reason = ""
        for attempt in range(self._attempts_max):
            if attempt:
                self._pause(min(PAUSE_S_FIRST * 2 ** (attempt - 1), PAUSE_S_MAX))
            try:
                with urlopen(request, timeout=CALL_S_MAX) as answer:  # noqa: S310
                    return _parsed(answer.read(ANSWER_BYTES_MAX + 1), self._url + path)
            except HTTPError as error:
                reason = self._judge(error, path)
            except (URLError, OSError) as error:
                reason = str(getattr(error, "reason", error))
        raise RegistryUnavailableError(
            f"registry: {self._url}{path} gave no answer in {self._attempts_max} attempts ({reason}); make"
            " sure that driver and executors reach it, and start the job again"
        )

    def _judge(self, error: HTTPError, path: str) -> str:
        status = error.code
        error.close()
        if status == HTTPStatus.NOT_FOUND:
            raise SchemaUnknownError(f"the registry has no {path}") from None
        if status in PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return f"HTTP {status}"
        remedy = (
            f"give USER:PASSWORD in the variable {AUTH_VARIABLE} of driver and executors"
            if status in {401, 403}
            else "check that the URL is that of a schema registry"
        )
        raise RegistryUnavailableError(
            f"registry: {self._url}{path} answers HTTP {status}; {remedy}"
        ) from None


@functools.lru_cache(REGISTRIES_MAX)
def registry_at(url: str) -> Registry:
    """Return this process's client of the registry, so that tasks in one worker share its cache."""
    return Registry(url, auth=os.environ.get(AUTH_VARIABLE, ""))


def _parsed(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
        if len(body) <= ANSWER_BYTES_MAX and isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise RegistryUnavailableError(f"registry: {url} does not answer as a schema registry; correct the URL")


def _schema_of(answer: dict[str, Any]) -> Schema:
    references = tuple(
        Reference(each["name"], each["subject"], int(each["version"]))
        for each in answer.get("references") or ()
    )
    return Schema(str(answer.get("schemaType") or "AVRO"), str(answer["schema"]), references)
