"""The configuration file of one controller process.

`ponor up` writes this JSON object and `python -m ponor_controller --config FILE` reads it.

    {"data": DIR, "listen": "HOST:PORT", "cluster_ordinal": N, "cluster_id": "...", "ready_file": FILE,
    "metrics": "HOST:PORT", "settings": {NAME: VALUE},
     "node_id": N, "peer_listen": "HOST:PORT", "format": true, "peer_tls": {"certificate": FILE, "key": FILE,
     "authorities": FILE}, "voters": [{"node_id": N, "peer_address": "HOST:PORT", "service_address":
     "HOST:PORT"}]}

A `node_id` below 2^16 is a number within the cluster. `cluster_ordinal` is drawn when the cluster is
formatted, unless it is given. `format` is needed only for the first start: it allows a controller with an
empty directory to become a voter of a new cluster.

`data` and `listen` are required; everything else has a default. With `voters`, `node_id` and `peer_listen`
are required too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

from ponor_rpc.tls import TlsFiles
from ponor_runtime.configuration_file import ConfigurationFile, ServiceConfiguration
from ponor_runtime.identity import CLUSTER_ORDINAL_MAX, UNKNOWN_ORDINAL, ClusterOrdinal, NodeId

from ponor_controller.consensus.members import Member
from ponor_controller.options import ControllerOptions
from ponor_controller.settings import ControllerSettings

KEYS: Final = (
    "cluster_id",
    "cluster_ordinal",
    "data",
    "format",
    "listen",
    "node_id",
    "peer_listen",
    "peer_tls",
    "voters",
)
TLS_FILES: Final = ("certificate", "key", "authorities")
NODE_ID_MAX: Final = (1 << 30) - 1
ControllerConfiguration: TypeAlias = ServiceConfiguration[ControllerOptions, ControllerSettings]


def read_configuration(path: Path) -> ControllerConfiguration:
    """Read and check a file.

    Raises:
        StartRefusedError: the file is invalid; the message names the reason.
        SettingError: a setting is invalid; the message names it.
    """
    file = ConfigurationFile(path, KEYS)
    content = file.content
    voters = tuple(_voter(each, file) for each in content.get("voters", []))
    if len({voter.node_id for voter in voters}) != len(voters):
        raise file.refused("'voters' contains a node id twice; list each voter once")
    ordinal = UNKNOWN_ORDINAL
    if "cluster_ordinal" in content:
        ordinal = ClusterOrdinal(file.integer("cluster_ordinal", 1, CLUSTER_ORDINAL_MAX))
    node_id = None
    if voters or content.get("node_id") is not None:
        node_id = NodeId(file.integer("node_id", 1, NODE_ID_MAX))
    options = ControllerOptions(
        data=Path(file.text("data")).absolute(),
        listen=file.text("listen"),
        cluster_ordinal=ordinal,
        cluster_id=file.text("cluster_id", default=""),
        node_id=node_id,
        peer_listen=file.text("peer_listen", default=None if voters else ""),
        peer_tls=_peer_tls(file),
        voters=voters,
        format=file.flag("format"),
    )
    return file.configuration(options, ControllerSettings)


def _voter(content: Any, file: ConfigurationFile) -> Member:
    try:
        return Member(
            NodeId(int(content["node_id"])),
            b"",
            str(content["peer_address"]),
            str(content["service_address"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise file.refused(
            f"{content!r} in 'voters' is not a voter ({error}); give node_id, peer_address and"
            " service_address"
        ) from error


def _peer_tls(file: ConfigurationFile) -> TlsFiles | None:
    files = file.content.get("peer_tls")
    if files is None:
        return None
    if not isinstance(files, dict) or set(files) != set(TLS_FILES):
        raise file.refused(f"'peer_tls' must contain exactly {', '.join(TLS_FILES)}")
    return TlsFiles(*(Path(files[name]) for name in TLS_FILES))
