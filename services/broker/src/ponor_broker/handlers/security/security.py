"""The handlers of the security APIs, with the versions that the broker advertises."""

from __future__ import annotations

from ponor_kafka.api import ApiKey

from ponor_broker.handlers.authorization import create_acls, delete_acls, describe_acls
from ponor_broker.handlers.security.scram_credentials import ScramCredentialsHandler
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.api_handler import ApiHandler
from ponor_broker.security.scram_credentials import ScramCredentials


def security_handlers(credentials: ScramCredentials, admin: TopicAdmin) -> list[ApiHandler]:
    """Return the handlers."""
    scram = ScramCredentialsHandler(credentials, admin)
    return [
        ApiHandler(ApiKey.DESCRIBE_ACLS, 1, 3, describe_acls),
        ApiHandler(ApiKey.CREATE_ACLS, 1, 3, create_acls),
        ApiHandler(ApiKey.DELETE_ACLS, 1, 3, delete_acls),
        ApiHandler(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, scram.describe),
        ApiHandler(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, scram.alter),
    ]
