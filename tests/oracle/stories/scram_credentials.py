"""SCRAM credentials: altered, described, refused."""

from __future__ import annotations

from typing import Final

from ponor_kafka.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ponor_kafka.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)

from tests.oracle.narrator import Narrator
from tests.oracle.story import story

SHA_256, SHA_512 = 1, 2
SALT: Final = b"a salt of the story"
SALTED: Final = b"p" * 32


def upsertion(
    user: str, mechanism: int = SHA_256, iterations: int = 4096, *, salt: bytes = SALT, salted: bytes = SALTED
) -> ScramCredentialUpsertion:
    """Set a credential."""
    return ScramCredentialUpsertion(user, mechanism, iterations, salt, salted)


def alter(
    *changes: ScramCredentialUpsertion | ScramCredentialDeletion,
) -> AlterUserScramCredentialsRequest:
    """Alter credentials."""
    return AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in changes if isinstance(each, ScramCredentialUpsertion)],
    )


def describe(*users: str) -> DescribeUserScramCredentialsRequest:
    """Describe users."""
    return DescribeUserScramCredentialsRequest([UserName(user) for user in users])


@story("SCRAM credentials of both mechanisms are set, described, replaced and deleted")
def scram_credentials(k: Narrator) -> None:
    k.ask(describe("scram-alice"), 0, "a user without a credential")
    k.ask(alter(upsertion("scram-alice"), upsertion("scram-bob", SHA_512, 16_384)), 0, "two users")
    k.ask(alter(upsertion("scram-alice", SHA_512, 8_192)), 0, "the other mechanism")
    k.ask(describe("scram-alice", "scram-bob", "scram-carol"), 0, "three users, one unknown")
    k.ask(describe("scram-alice", "scram-bob", "scram-alice"), 0, "a user twice")
    k.ask(alter(upsertion("scram-alice", SHA_512, 4_097)), 0, "replaced")
    k.ask(DescribeUserScramCredentialsRequest(None), 0, "all users")
    k.ask(describe(), 0, "all users, with an empty list")
    k.ask(alter(ScramCredentialDeletion("scram-alice", SHA_256)), 0, "one of two deleted")
    k.ask(describe("scram-alice"), 0, "the other is left")
    k.ask(
        alter(ScramCredentialDeletion("scram-alice", SHA_512), ScramCredentialDeletion("scram-bob", SHA_512)),
        0,
        "the others deleted",
    )
    k.ask(DescribeUserScramCredentialsRequest(None), 0, "none is left")
    k.ask(alter(), 0, "no alteration")


@story("SCRAM credentials that are refused")
def refuse_scram_credentials(k: Narrator) -> None:
    k.ask(alter(upsertion("scram-few", iterations=4_095)), 0, "too few iterations")
    k.ask(alter(upsertion("scram-many", iterations=16_385)), 0, "too many iterations")
    k.ask(alter(upsertion("scram-minus", iterations=-1)), 0, "a negative number of iterations")
    k.ask(alter(upsertion("")), 0, "a user without a name")
    k.ask(alter(upsertion("", mechanism=9)), 0, "neither a name nor a mechanism")
    k.ask(alter(upsertion("scram-mechanism", mechanism=0)), 0, "mechanism 0")
    k.ask(alter(upsertion("scram-mechanism", mechanism=3)), 0, "mechanism 3")
    k.ask(alter(ScramCredentialDeletion("", SHA_256)), 0, "deletion without a name")
    k.ask(alter(ScramCredentialDeletion("scram-mechanism", 7)), 0, "deletion with mechanism 7")
    k.ask(alter(ScramCredentialDeletion("scram-none", SHA_256)), 0, "deletion of a missing credential")
    k.ask(describe(""), 0, "the empty name described")
    k.ask(alter(upsertion("scram-salt", salt=b"")), 0, "no salt")
    k.ask(alter(ScramCredentialDeletion("scram-salt", SHA_256)), 0, "deletion")


@story("A user that one request alters twice")
def alter_scram_credentials_twice(k: Narrator) -> None:
    k.ask(
        alter(upsertion("scram-twice"), upsertion("scram-twice", SHA_512), upsertion("scram-once")),
        0,
        "both mechanisms",
    )
    k.ask(describe("scram-twice", "scram-once"), 0, "only the other user has a credential")
    k.ask(
        alter(ScramCredentialDeletion("scram-once", SHA_256), upsertion("scram-once")), 0, "deleted and set"
    )
    k.ask(
        alter(ScramCredentialDeletion("scram-none", SHA_256), upsertion("scram-none")),
        0,
        "missing, deleted and set",
    )
    k.ask(alter(upsertion("scram-bad", iterations=1), upsertion("scram-bad")), 0, "invalid, then valid")
    k.ask(alter(upsertion("scram-bad"), upsertion("scram-bad", iterations=1)), 0, "valid, then invalid")
    k.ask(alter(*[upsertion("scram-thrice")] * 3), 0, "three times")
    k.ask(
        alter(*[ScramCredentialDeletion("scram-once", SHA_256)] * 2, upsertion("scram-other")),
        0,
        "deleted twice",
    )
    k.ask(DescribeUserScramCredentialsRequest(None), 0, "all users")
    k.ask(
        alter(
            ScramCredentialDeletion("scram-once", SHA_256), ScramCredentialDeletion("scram-other", SHA_256)
        ),
        0,
        "deletion",
    )
