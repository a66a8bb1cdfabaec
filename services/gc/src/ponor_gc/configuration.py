"""Configuration file of one garbage collector process; `ponor_metadata.client.node_process` describes its
keys.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from ponor_metadata.client.node_process import NodeOptions, read_node_configuration
from ponor_runtime.configuration_file import ServiceConfiguration

from ponor_gc.settings import GcSettings

GcConfiguration: TypeAlias = ServiceConfiguration[NodeOptions, GcSettings]


def read_configuration(path: Path) -> GcConfiguration:
    """Read and validate a configuration file; see `read_node_configuration` for the errors."""
    return read_node_configuration(path, GcSettings)
