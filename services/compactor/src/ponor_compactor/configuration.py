"""Configuration file of one compactor process; `ponor_metadata.client.node_process` describes its keys."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from ponor_metadata.client.node_process import NodeOptions, read_node_configuration
from ponor_runtime.configuration_file import ServiceConfiguration

from ponor_compactor.settings import CompactorSettings

CompactorConfiguration: TypeAlias = ServiceConfiguration[NodeOptions, CompactorSettings]


def read_configuration(path: Path) -> CompactorConfiguration:
    """Read and validate a configuration file; see `read_node_configuration` for the errors."""
    return read_node_configuration(path, CompactorSettings)
