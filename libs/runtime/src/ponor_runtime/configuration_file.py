"""Configuration file of a service: one JSON object. Each service defines its keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.settings import load

OptionsT = TypeVar("OptionsT")
SettingsT = TypeVar("SettingsT")
COMMON_KEYS: Final = ("metrics", "ready_file", "settings")


@dataclass(frozen=True, slots=True)
class ServiceConfiguration(Generic[OptionsT, SettingsT]):
    """A parsed file. `metrics`: HOST:PORT of the metrics endpoint."""

    options: OptionsT
    settings: SettingsT
    ready_file: Path | None
    metrics: str | None


class ConfigurationFile:
    """The content of a file. Every method raises `StartRefusedError`, which names the file and the key."""

    def __init__(self, path: Path, keys: tuple[str, ...]) -> None:
        """Read a file with `keys` and COMMON_KEYS."""
        self._path = path
        try:
            self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StartRefusedError(f"configuration {path} cannot be read: {error}") from error
        known = sorted((*keys, *COMMON_KEYS))
        for name in self.content:
            if name not in known:
                raise self.refused(f"unknown key {name!r}; known keys: {', '.join(known)}")

    def refused(self, problem: str) -> StartRefusedError:
        """Return the error for a problem of this file."""
        return StartRefusedError(f"configuration {self._path}: {problem}")

    def text(self, name: str, what: str = "a text", *, default: str | None = None) -> str:
        """Return a text. Without a default, the key is required and the text must not be empty. Error
        messages contain `what`, the expected form.
        """
        value = self.content.get(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.refused(f"{name!r} is missing; set it to {what}")
        return value

    def integer(self, name: str, low: int, high: int, *, default: int | None = None) -> int:
        """Return a number within the bounds; without a default the key is required."""
        value = self.content.get(name, default)
        if not isinstance(value, int) or not low <= value <= high:
            raise self.refused(f"{name} {value!r} is not within {low}..{high}")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false; false by default."""
        value = self.content.get(name, False)
        if not isinstance(value, bool):
            raise self.refused(f"{name} {value!r} is neither true nor false")
        return value

    def configuration(
        self, options: OptionsT, settings: type[SettingsT]
    ) -> ServiceConfiguration[OptionsT, SettingsT]:
        """Return the configuration: these options and the values of the common keys.

        Raises:
            SettingError: a setting is invalid; the message names it.
        """
        ready_file = self.content.get("ready_file")
        return ServiceConfiguration(
            options,
            load(settings, self.content.get("settings", {})),
            Path(ready_file) if ready_file else None,
            self.content.get("metrics"),
        )
