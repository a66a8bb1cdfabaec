"""Objects: PREPARED -> COMMITTED -> DESTROYED -> GONE, or PREPARED -> DESTROYED -> GONE.

These are the controller's rules, in cluster time. A model may disable each rule by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from ponor_cluster_simulation.protocols.streams import NO_NODE, NotAllowedError


class Phase(IntEnum):
    """The state of an object."""

    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3
    GONE = 4


class Object(NamedTuple):
    """An object. `node` and `node_epoch` may commit it until `expires_at`; `claimed_by` may delete
    it until `claimed_until`.
    """

    phase: Phase
    node: int
    node_epoch: int
    expires_at: int
    destroyed_at: int = 0
    claimed_by: tuple[int, int] = (NO_NODE, NO_NODE)
    claimed_until: int = 0


@dataclass(frozen=True, slots=True)
class ObjectRules:
    """The rules; a model may disable each.

    Attributes:
        ids_once: an id is assigned once.
        commit_needs_prepared: only a PREPARED object can be committed.
        commit_by_preparer: only the process that prepared an object can commit it.
        commit_in_lease: an object can be committed only until its lease ends.
        claim_after_lease: a PREPARED object is claimed only after its lease and the delay, in which a put may
            still be in flight.
        claim_after_delay: a DESTROYED object is claimed only after the delay, in which readers of older
            images may still need it.
        remove_needs_claim: only a claimed object can be removed.
    """

    ids_once: bool = True
    commit_needs_prepared: bool = True
    commit_by_preparer: bool = True
    commit_in_lease: bool = True
    claim_after_lease: bool = True
    claim_after_delay: bool = True
    remove_needs_claim: bool = True


ALL_RULES: Final = ObjectRules()


def prepared(
    known: Object | None, node: int, node_epoch: int, expires_at: int, rules: ObjectRules = ALL_RULES
) -> Object:
    """A new object; `known` is an earlier object with this id, or None.

    Raises:
        NotAllowedError: the id was assigned before.
    """
    if known is not None and (rules.ids_once or known.phase is not Phase.GONE):
        raise NotAllowedError(f"an object id is assigned again, but its object is {known.phase.name}")
    return Object(Phase.PREPARED, node, node_epoch, expires_at)


def committed(each: Object, node: int, node_epoch: int, now: int, rules: ObjectRules = ALL_RULES) -> Object:
    """The object after its commit.

    Raises:
        NotAllowedError: it is not PREPARED, not the caller's, or its lease has expired.
    """
    if rules.commit_needs_prepared and each.phase is not Phase.PREPARED:
        raise NotAllowedError(f"an object is committed in phase {each.phase.name}")
    if rules.commit_by_preparer and (each.node, each.node_epoch) != (node, node_epoch):
        raise NotAllowedError(
            f"node {node} at epoch {node_epoch} commits an object that node {each.node} prepared at epoch"
            f" {each.node_epoch}"
        )
    if rules.commit_in_lease and now > each.expires_at:
        raise NotAllowedError(f"an object is committed at {now}, but its lease ended at {each.expires_at}")
    return each._replace(phase=Phase.COMMITTED)


def destroyed(each: Object, now: int) -> Object:
    """The object after its destruction, when no stream refers to it.

    Raises:
        NotAllowedError: it is already destroyed.
    """
    if each.phase not in {Phase.PREPARED, Phase.COMMITTED}:
        raise NotAllowedError(f"an object is destroyed in phase {each.phase.name}")
    return each._replace(phase=Phase.DESTROYED, destroyed_at=now)


def claimed(
    each: Object, collector: tuple[int, int], now: int, until: int, delay: int, rules: ObjectRules = ALL_RULES
) -> Object:
    """The object after a claim by a collector (node, node epoch), which may then delete it. The claim
    destroys a PREPARED object.

    Raises:
        NotAllowedError: it is in use, its lease or the delay has not ended, or another collector holds it.
    """
    if each.phase is Phase.PREPARED:
        if rules.claim_after_lease and now <= each.expires_at + delay:
            raise NotAllowedError(
                f"an object is claimed at {now}: its lease ends at {each.expires_at}, and the delay is"
                f" {delay}"
            )
        each = destroyed(each, now)
    elif each.phase is not Phase.DESTROYED:
        raise NotAllowedError(f"an object is claimed in phase {each.phase.name}")
    elif (
        each.claimed_by == (NO_NODE, NO_NODE) and rules.claim_after_delay and now <= each.destroyed_at + delay
    ):
        raise NotAllowedError(
            f"an object is claimed at {now}: it was destroyed at {each.destroyed_at}, and the delay is"
            f" {delay}"
        )
    elif each.claimed_by not in {(NO_NODE, NO_NODE), collector} and now <= each.claimed_until:
        raise NotAllowedError(
            f"an object is claimed at {now}, but {each.claimed_by} holds a claim until {each.claimed_until}"
        )
    return each._replace(claimed_by=collector, claimed_until=until)


def removed(each: Object, collector: tuple[int, int] | None, rules: ObjectRules = ALL_RULES) -> Object:
    """The object after its deletion from the store; `collector` is the caller, None if unknown.

    Raises:
        NotAllowedError: it is not destroyed, or not claimed by the collector.
    """
    if each.phase is not Phase.DESTROYED:
        raise NotAllowedError(f"an object is removed in phase {each.phase.name}")
    if rules.remove_needs_claim and (
        each.claimed_by == (NO_NODE, NO_NODE) or collector not in {None, each.claimed_by}
    ):
        raise NotAllowedError(f"{collector} removes an object, but the claim belongs to {each.claimed_by}")
    return each._replace(phase=Phase.GONE)
