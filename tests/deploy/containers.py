"""The configuration of a container of the image, as its service reads it.

Passes a container's environment through the image's entrypoint to the service's configuration
parser. A wrong name in the chart or the compose file fails here instead of at a start in a cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ponor_broker.configuration import BrokerConfiguration
from ponor_broker.configuration import read_configuration as read_broker
from ponor_compactor.configuration import CompactorConfiguration
from ponor_compactor.configuration import read_configuration as read_compactor
from ponor_controller.configuration import ControllerConfiguration
from ponor_controller.configuration import read_configuration as read_controller
from ponor_gc.configuration import GcConfiguration
from ponor_gc.configuration import read_configuration as read_gc

ROOT: Final = Path(__file__).parents[2]
ENTRYPOINT: Final = ROOT / "deploy" / "image" / "ponor_entry.py"
PROBE: Final = ENTRYPOINT.with_name("ponor_probe.py")
"""Health check of the container engine."""


def load_entrypoint() -> ModuleType:
    """The entrypoint's module, which is a file of the image and not of a member."""
    spec = spec_from_file_location("ponor_entry", ENTRYPOINT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ENTRY: Final = load_entrypoint()


def configuration_of(role: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The configuration file that the entrypoint writes."""
    config: dict[str, Any] = ENTRY.configuration(role, ENTRY.ContainerEnvironment(environment))
    return config


def broker_of(environment: Mapping[str, str], directory: Path) -> BrokerConfiguration:
    """The broker's configuration."""
    return read_broker(_written("broker", environment, directory))


def controller_of(environment: Mapping[str, str], directory: Path) -> ControllerConfiguration:
    """The controller's configuration."""
    return read_controller(_written("controller", environment, directory))


def gc_of(environment: Mapping[str, str], directory: Path) -> GcConfiguration:
    """The garbage collector's configuration."""
    return read_gc(_written("gc", environment, directory))


def compactor_of(environment: Mapping[str, str], directory: Path) -> CompactorConfiguration:
    """The compactor's configuration."""
    return read_compactor(_written("compactor", environment, directory))


def _written(role: str, environment: Mapping[str, str], directory: Path) -> Path:
    path = directory / f"{role}.json"
    path.write_text(json.dumps(configuration_of(role, environment)))
    return path
