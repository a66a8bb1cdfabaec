"""`--set NAME=VALUE`: find the services with the setting, and check the value.

Names are fields of the services' settings classes. A name that several services have is set in each of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ponor_broker.settings import BrokerSettings
from ponor_compactor.settings import CompactorSettings
from ponor_controller.settings import ControllerSettings
from ponor_gc.settings import GcSettings
from ponor_runtime.settings import SettingError, describe, load

from ponor_cli.errors import CommandError

SETTINGS_OF_ROLE: Mapping[str, type[Any]] = {
    "controller": ControllerSettings,
    "broker": BrokerSettings,
    "gc": GcSettings,
    "compactor": CompactorSettings,
}


def route_settings(assignments: Sequence[str]) -> dict[str, dict[str, str]]:
    """Sort NAME=VALUE texts by role and check them against the types and bounds of the services.

    Raises:
        CommandError: not NAME=VALUE, an unknown name, or a value out of bounds.
    """
    names = {role: {row.name for row in describe(settings)} for role, settings in SETTINGS_OF_ROLE.items()}
    routed: dict[str, dict[str, str]] = {role: {} for role in SETTINGS_OF_ROLE}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise CommandError(f"--set {assignment}: write NAME=VALUE")
        roles = [role for role, known in names.items() if name in known]
        if not roles:
            raise CommandError(f"--set {name}: no such setting; {_suggestion(name, names)}")
        for role in roles:
            routed[role][name] = value
    for role, values in routed.items():
        try:
            load(SETTINGS_OF_ROLE[role], values)
        except SettingError as error:
            raise CommandError(f"--set: {error}") from error
    return routed


def settings_of(role: str, assignments: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE texts for one node and check them against the types and bounds of its service.

    Raises:
        CommandError: the role is unknown, the text is not NAME=VALUE, or the name or value is invalid.
    """
    settings = SETTINGS_OF_ROLE.get(role)
    if settings is None:
        if not assignments:
            return {}
        raise CommandError(f"unknown role {role}; choose {', '.join(SETTINGS_OF_ROLE)}")
    routed = route_settings(assignments)[role]
    known = {row.name for row in describe(settings)}
    for assignment in assignments:
        name = assignment.partition("=")[0]
        if name not in known:
            raise CommandError(
                f"--set {name}: not a setting of a {role}; `docs/operations/settings.md` lists them"
            )
    return routed


def _suggestion(name: str, names: Mapping[str, set[str]]) -> str:
    known = sorted(set().union(*names.values()))
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"`docs/operations/settings.md` lists all {len(known)}"
