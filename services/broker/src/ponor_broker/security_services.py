"""Composition of the security of one broker: credentials, access control lists, their handlers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ponor.metadata.v1.records_pb2 import RecordBatch
from ponor_kafka.api import ApiKey
from ponor_metadata.tables.schema import View
from ponor_runtime.health import Health
from ponor_runtime.runtime import Runtime
from ponor_runtime.turns import in_turns

from ponor_broker.handlers.authorization import create_acls, delete_acls, describe_acls
from ponor_broker.handlers.security.acls import AclsHandler
from ponor_broker.handlers.security.sasl import SaslHandlers
from ponor_broker.handlers.security.scram_credentials import ScramCredentialsHandler
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.api_handler import ApiHandler
from ponor_broker.security.authorizer import Authorizer
from ponor_broker.security.mechanisms import ExchangeFactory
from ponor_broker.security.scram_credentials import ScramCredentials
from ponor_broker.security.settings import SecuritySettings


class SecurityServices:
    """`authorizer` is None unless `acls_enabled` is set."""

    def __init__(
        self,
        settings: SecuritySettings,
        runtime: Runtime,
        image: Callable[[], View],
        admin: TopicAdmin,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._image = image
        self._admin = admin
        self._spawn = spawn
        self.scram_credentials = ScramCredentials(image)
        self._sasl = SaslHandlers(
            ExchangeFactory(self.scram_credentials.find, runtime.randomness),
            runtime.clock,
            session_ms_max=settings.reauthentication_ms_max,
        )
        self.authorizer: Authorizer | None = None
        if settings.acls_enabled:
            self.authorizer = Authorizer(
                super_users=[each.strip() for each in settings.super_users.split(";") if each.strip()],
                allow_without_acls=settings.allow_everyone_if_no_acl_found,
            )

    def start(self, health: Health) -> None:
        """Load the ACLs. The broker is not ready before they are loaded."""
        health.require("access control lists", self._not_ready)
        self.image_changed(None)

    def image_changed(self, batch: RecordBatch | None) -> None:
        """Apply a committed batch; None: the image was replaced."""
        if self.authorizer is None:
            return
        if batch is None:
            self._spawn(in_turns(self.authorizer.load(self._image())), "access control lists")
        else:
            self.authorizer.apply(batch)

    def _not_ready(self) -> str:
        is_ready = self.authorizer is None or self.authorizer.is_ready
        return "" if is_ready else "the access control lists are not loaded"

    def handlers(self) -> list[ApiHandler]:
        """Return the security APIs with the versions that the broker advertises."""
        scram = ScramCredentialsHandler(self.scram_credentials, self._admin)
        handlers = [
            *self._sasl.handlers(),
            ApiHandler(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, scram.describe),
            ApiHandler(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, scram.alter),
        ]
        if self.authorizer is None:
            return [
                *handlers,
                ApiHandler(ApiKey.DESCRIBE_ACLS, 1, 3, describe_acls),
                ApiHandler(ApiKey.CREATE_ACLS, 1, 3, create_acls),
                ApiHandler(ApiKey.DELETE_ACLS, 1, 3, delete_acls),
            ]
        acls = AclsHandler(self.authorizer, self._admin)
        return [
            *handlers,
            ApiHandler(ApiKey.DESCRIBE_ACLS, 1, 3, acls.describe),
            ApiHandler(ApiKey.CREATE_ACLS, 1, 3, acls.create),
            ApiHandler(ApiKey.DELETE_ACLS, 1, 3, acls.delete),
        ]
