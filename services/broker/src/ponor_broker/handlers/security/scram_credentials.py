"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554).

The keys are derived here: a salted password is sufficient to log in as its user, so it is neither stored nor
sent to a controller. Rules and messages are those of Kafka 4.3.1 (ScramControlManager, ScramImage).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from ponor.common.v1 import error_pb2
from ponor.controller.v1.session_service_pb2 import (
    AlterScramCredentials,
    Operation,
    ScramAlteration,
    ScramSecrets,
)
from ponor_kafka.errors import ErrorCode
from ponor_kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ponor_kafka.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ponor_metadata.nouns.scram_credentials import ScramMechanism
from ponor_runtime.turns import Steps, in_turns

from ponor_broker.partitions.errors import PartitionError
from ponor_broker.partitions.topics.topic_admin import TopicAdmin
from ponor_broker.requests.api_handler import RequestContext
from ponor_broker.security.scram_credentials import ScramCredentials, derive_keys

ALTERATIONS_MAX: Final = 1_000
"""Alterations in one request, which are one operation of the controller."""
USERS_DESCRIBED_MAX: Final = 10_000
USER_CHARACTERS_MAX: Final = 256
SALT_BYTES_MAX: Final = 256
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
_MECHANISMS: Final = frozenset(map(int, ScramMechanism))
_PER_STEP: Final = 50

Change: TypeAlias = ScramCredentialDeletion | ScramCredentialUpsertion
Problem: TypeAlias = tuple[ErrorCode, str]
ALTERED_TWICE: Final[Problem] = (
    ErrorCode.DUPLICATE_RESOURCE,
    "A user credential cannot be altered twice in the same request",
)
NOTHING_TO_DELETE: Final[Problem] = (
    ErrorCode.RESOURCE_NOT_FOUND,
    "Attempt to delete a user credential that does not exist",
)
_KAFKA_CODES: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        error_pb2.ERROR_CODE_UNSPECIFIED: ErrorCode.NONE,
        error_pb2.ERROR_CODE_TOO_MANY_CREDENTIALS: ErrorCode.UNACCEPTABLE_CREDENTIAL,
    }
)


class ScramCredentialsHandler:
    """Describes credentials from the image; alters them through the controller."""

    def __init__(self, credentials: ScramCredentials, admin: TopicAdmin) -> None:
        self._credentials = credentials
        self._admin = admin

    async def describe(
        self, request: DescribeUserScramCredentialsRequest, _: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        """Return mechanisms and iterations of the named users; without names, of all users."""
        if request.users is not None and len(request.users) > USERS_DESCRIBED_MAX:
            return DescribeUserScramCredentialsResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"The request names {len(request.users)} users; name at most"
                f" {USERS_DESCRIBED_MAX}, or none to describe all.",
            )
        names = [each.name for each in request.users or ()]
        users = names or await in_turns(self._credentials.users())
        return DescribeUserScramCredentialsResponse(results=await in_turns(self._described(users)))

    def _described(self, users: Iterable[str]) -> Steps[list[DescribeUserScramCredentialsResult]]:
        results = []
        for number, (user, times) in enumerate(Counter(users).items(), start=1):
            results.append(self._description(user, times))
            if number % _PER_STEP == 0:
                yield
        return results

    def _description(self, user: str, times: int) -> DescribeUserScramCredentialsResult:
        if times > 1:
            return DescribeUserScramCredentialsResult(
                user,
                ErrorCode.DUPLICATE_RESOURCE,
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
            )
        found = self._credentials.of_user(user)
        if not found:
            return DescribeUserScramCredentialsResult(
                user,
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {user}",
            )
        infos = [CredentialInfo(row.mechanism, row.iterations) for row in found]
        return DescribeUserScramCredentialsResult(user, credential_infos=infos)

    async def alter(
        self, request: AlterUserScramCredentialsRequest, _: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        """Set and remove credentials, at most one of each user."""
        changes: list[Change] = [*request.deletions, *request.upsertions]
        if len(changes) > ALTERATIONS_MAX:
            text = f"The request has {len(changes)} alterations; send at most {ALTERATIONS_MAX}."
            problems = dict.fromkeys((each.name for each in changes), (ErrorCode.INVALID_REQUEST, text))
            return _answer(problems)
        accepted, problems = self._separate(changes)
        alterations = await in_turns(_alterations(accepted))
        if alterations:
            problems |= await self._alter(alterations)
        return _answer(problems)

    async def _alter(self, alterations: Sequence[ScramAlteration]) -> dict[str, Problem]:
        """Send the alterations to the controller; return the outcome for each user."""
        body = AlterScramCredentials(tenant_id=self._credentials.tenant_id, alterations=alterations)
        try:
            result = await self._admin.submit(Operation(alter_scram_credentials=body))
        except PartitionError as error:
            return {each.user: (error.code, str(error)) for each in alterations}
        outcomes = result.scram_credentials_altered.outcomes
        return {each.user: _problem_of(outcome) for each, outcome in zip(alterations, outcomes, strict=True)}

    def _separate(self, changes: Iterable[Change]) -> tuple[list[Change], dict[str, Problem]]:
        """Return the changes of users that are altered once, and the problems of the other users.

        As in Kafka, a user gets the problem of its first invalid change.
        """
        accepted: dict[str, Change] = {}
        problems: dict[str, Problem] = {}
        for change in changes:
            if change.name in problems:
                continue
            earlier = accepted.pop(change.name, None)
            problem = _invalid(change) if earlier is None else self._repeated(earlier)
            if problem is None:
                accepted[change.name] = change
            else:
                problems[change.name] = problem
        return list(accepted.values()), problems

    def _repeated(self, earlier: Change) -> Problem:
        is_deletion = isinstance(earlier, ScramCredentialDeletion)
        if is_deletion and not self._credentials.find(earlier.name, ScramMechanism(earlier.mechanism)):
            return NOTHING_TO_DELETE
        return ALTERED_TWICE


def _invalid(change: Change) -> Problem | None:
    unacceptable = ErrorCode.UNACCEPTABLE_CREDENTIAL
    if not change.name:
        return unacceptable, "Username must not be empty"
    if change.mechanism not in _MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, ScramCredentialDeletion):
        return None
    if change.iterations < ITERATIONS_MIN:
        return unacceptable, "Too few iterations"
    if change.iterations > ITERATIONS_MAX:
        return unacceptable, "Too many iterations"
    if len(change.name) > USER_CHARACTERS_MAX:
        return unacceptable, f"Username is longer than {USER_CHARACTERS_MAX} characters"
    if len(change.salt) > SALT_BYTES_MAX:
        return unacceptable, f"Salt is longer than {SALT_BYTES_MAX} bytes"
    if not change.salted_password:
        return unacceptable, "Salted password must not be empty"
    return None


def _alterations(changes: Iterable[Change]) -> Steps[list[ScramAlteration]]:
    """Derive the keys, a few in each step."""
    alterations = []
    for number, change in enumerate(changes, start=1):
        alterations.append(_alteration(change))
        if number % _PER_STEP == 0:
            yield
    return alterations


def _alteration(change: Change) -> ScramAlteration:
    mechanism = ScramMechanism(change.mechanism)
    alteration = ScramAlteration(user=change.name, mechanism=int(mechanism))  # type: ignore[arg-type]
    if isinstance(change, ScramCredentialUpsertion):
        keys = derive_keys(mechanism, change.salted_password)
        alteration.secrets.CopyFrom(
            ScramSecrets(
                salt=change.salt,
                stored_key=keys.stored_key,
                server_key=keys.server_key,
                iterations=change.iterations,
            )
        )
    return alteration


def _problem_of(outcome: error_pb2.Error) -> Problem:
    if outcome.code == error_pb2.ERROR_CODE_CREDENTIAL_NOT_FOUND:
        return NOTHING_TO_DELETE
    return _KAFKA_CODES.get(outcome.code, ErrorCode.REQUEST_TIMED_OUT), outcome.message


def _answer(problems: Mapping[str, Problem]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user, code, message or None)
            for user, (code, message) in problems.items()
        ]
    )
