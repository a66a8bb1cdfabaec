"""DescribeUserScramCredentials and AlterUserScramCredentials beyond the recorded stories: what is sent to the
controller, its refusals, and bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ponor.common.v1 import error_pb2
from ponor.controller.v1.session_service_pb2 import Operation, OperationResult
from ponor_broker.handlers.security.scram_credentials import (
    ALTERATIONS_MAX,
    USERS_DESCRIBED_MAX,
    ScramCredentialsHandler,
)
from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.security.scram_credentials import ScramCredentials, derive_keys
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ponor_kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from ponor_metadata.nouns.scram_credentials import ScramMechanism

from services.broker.tests.image_kit import ImageKit, context

SALTED = b"p" * 32


class RecordingAdmin:
    """Records operations; answers as `answer` says."""

    def __init__(self, answer: Callable[[Operation], OperationResult]) -> None:
        self.operations: list[Operation] = []
        self._answer = answer

    async def submit(self, operation: Operation) -> OperationResult:
        self.operations.append(operation)
        return self._answer(operation)


def succeed(operation: Operation) -> OperationResult:
    result = OperationResult()
    for _ in operation.alter_scram_credentials.alterations:
        result.scram_credentials_altered.outcomes.add()
    return result


def handler(
    answer: Callable[[Operation], OperationResult] = succeed,
) -> tuple[ScramCredentialsHandler, RecordingAdmin]:
    kit, admin = ImageKit(), RecordingAdmin(answer)
    return ScramCredentialsHandler(ScramCredentials(lambda: kit.image), cast("TopicAdmin", admin)), admin


def upsertion(user: str, *, salted: bytes = SALTED, salt: bytes = b"salt") -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(user, 1, 4_096, salt, salted)


async def codes(
    handler: ScramCredentialsHandler, *upsertions: ScramCredentialUpsertion
) -> dict[str, ErrorCode]:
    answer = await handler.alter(AlterUserScramCredentialsRequest([], list(upsertions)), context(0))
    return {row.user: ErrorCode(row.error_code) for row in answer.results}


async def test_the_controller_gets_keys_instead_of_the_salted_password() -> None:
    handles, admin = handler()
    assert await codes(handles, upsertion("alice")) == {"alice": ErrorCode.NONE}
    (operation,) = admin.operations
    (alteration,) = operation.alter_scram_credentials.alterations
    keys = derive_keys(ScramMechanism.SHA_256, SALTED)
    assert alteration.secrets.stored_key == keys.stored_key
    assert alteration.secrets.server_key == keys.server_key
    assert (alteration.secrets.salt, alteration.secrets.iterations) == (b"salt", 4_096)
    assert SALTED not in operation.SerializeToString()


async def test_all_valid_alterations_are_one_operation() -> None:
    handles, admin = handler()
    request = AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion("bob", 2)], [upsertion("alice"), upsertion(""), upsertion("carol")]
    )
    answer = await handles.alter(request, context(0))
    assert {row.user: row.error_code for row in answer.results} == {
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "alice": 0,
        "bob": 0,
        "carol": 0,
    }
    (operation,) = admin.operations
    alterations = operation.alter_scram_credentials.alterations
    assert [(each.user, each.HasField("secrets")) for each in alterations] == [
        ("bob", False),
        ("alice", True),
        ("carol", True),
    ]


async def test_refusals_of_the_controller_become_errors_of_their_users() -> None:
    def full(_: Operation) -> OperationResult:
        result = OperationResult()
        result.scram_credentials_altered.outcomes.add()
        result.scram_credentials_altered.outcomes.add(
            code=error_pb2.ERROR_CODE_TOO_MANY_CREDENTIALS, message="full"
        )
        return result

    handles, _ = handler(full)
    assert await codes(handles, upsertion("alice"), upsertion("bob")) == {
        "alice": ErrorCode.NONE,
        "bob": ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }

    def unreachable(_: Operation) -> OperationResult:
        raise PartitionError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

    handles, _ = handler(unreachable)
    timed_out = ErrorCode.REQUEST_TIMED_OUT
    wanted = [upsertion("alice"), upsertion("bob")]
    assert await codes(handles, *wanted) == {"alice": timed_out, "bob": timed_out}


async def test_bounds_of_names_salts_and_requests() -> None:
    handles, admin = handler()
    refused = ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert await codes(handles, upsertion("x" * 257)) == {"x" * 257: refused}
    assert await codes(handles, upsertion("alice", salt=b"s" * 257)) == {"alice": refused}
    assert await codes(handles, upsertion("alice", salted=b"")) == {"alice": refused}
    many = [upsertion(f"user {number}") for number in range(ALTERATIONS_MAX + 1)]
    assert set((await codes(handles, *many)).values()) == {ErrorCode.INVALID_REQUEST}
    assert admin.operations == []
    assert set((await codes(handles, *many[1:])).values()) == {ErrorCode.NONE}
    assert len(admin.operations) == 1
    users = [UserName(str(number)) for number in range(USERS_DESCRIBED_MAX + 1)]
    described = await handles.describe(DescribeUserScramCredentialsRequest(users), context(0))
    assert described.error_code == ErrorCode.INVALID_REQUEST
    described = await handles.describe(DescribeUserScramCredentialsRequest(users[1:]), context(0))
    assert {row.error_code for row in described.results} == {ErrorCode.RESOURCE_NOT_FOUND}
