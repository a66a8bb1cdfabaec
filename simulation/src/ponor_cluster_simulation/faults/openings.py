"""Faults between the moment in which something is opened and the one in which whoever asked for it knows of it.

What is opened by an operation of the controllers is seen when its records are committed, what is opened in the bucket when the call is applied. The fault strikes the process that asked: it cannot record
what it has, so somebody else must own or close it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ponor.metadata.v1.records_pb2 import Record

from ponor_cluster_simulation.faults.fault import Fault, FaultKind

AT_OPEN: Final = frozenset({FaultKind.CRASH_AT_OPEN, FaultKind.LOST_AT_OPEN, FaultKind.PAUSE_AT_OPEN})
REGISTRATIONS: Final = frozenset({"node_registered", "wal_opened"})
"""Records of no operation: they name their node themselves."""


class Openings:
    """Faults that wait until something is opened.

    Args:
        name_of: the process of a node; None if it is none of the cluster's.
        strike: does a fault to a process, once what happens now is over.
        struck: told of each fault that strikes, and of what was opened.
    """

    def __init__(
        self,
        name_of: Callable[[int], str | None],
        strike: Callable[[Fault, str], None],
        struck: Callable[[Fault, str], None],
    ) -> None:
        self._name_of = name_of
        self._strike = strike
        self._struck = struck
        self._waiting: list[Fault] = []
        self._opened: list[str] = []
        """Kinds of the records of the operation whose records come now."""

    def wait(self, fault: Fault) -> None:
        """Strike as soon as what the fault names is opened."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Strike nobody any more."""
        self._waiting.clear()

    def committed(self, record: Record) -> None:
        """A record was committed. The last one of an operation names the node that asked for it."""
        if not self._waiting:
            self._opened.clear()
            return
        kind = record.WhichOneof("kind") or ""
        if kind in REGISTRATIONS:
            self._happened(kind, self._name_of(getattr(record, kind).node_id))
        elif kind == "operation_completed":
            opened, self._opened = dict.fromkeys(self._opened), []
            for each in opened:
                self._happened(each, self._name_of(record.operation_completed.node_id))
        else:
            self._opened.append(kind)

    def applied(self, call: str, name: str) -> bool:
        """The store carried out a call of a process; whether its answer is lost."""
        return self._happened(call, name)

    def _happened(self, what: str, name: str | None) -> bool:
        due = [fault for fault in self._waiting if fault.target == what]
        if name is None or not due:
            return False
        fault = due[0]  # one at a time: others that wait for the same strike when it is opened again
        self._waiting.remove(fault)
        self._struck(fault, what)
        self._strike(fault, name)
        return fault.kind is FaultKind.LOST_AT_OPEN
