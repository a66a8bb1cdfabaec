"""The configuration file of one broker process.

`ponor up` writes this JSON object, and `python -m ponor_broker --config FILE` reads it:

    {"node_id": N, "controllers": ["HOST:PORT"], "object_store": URL, "data": DIR,
     "kafka_host": HOST, "kafka_port": PORT, "advertised_host": HOST, "wal": "file" | "object",
     "ready_file": FILE, "metrics": "HOST:PORT", "settings": {NAME: VALUE},
     "cluster_id": ID, "share_store": true | false, "listeners": [LISTENER]}

The first four are required. `cluster_id` is the expected cluster; with `share_store` the store may
hold other clusters too. With `"wal": "object"` the directory `data` is not used. The keys of `listeners`:
`listener_configuration`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from ponor_metadata.client.node_process import NODE_KEYS, node_options
from ponor_metadata.nouns.nodes import WalKind
from ponor_runtime.configuration_file import ConfigurationFile, ServiceConfiguration

from ponor_broker.listener_configuration import ListenerConfigurationError, read_listeners
from ponor_broker.options import BrokerOptions
from ponor_broker.settings import BrokerSettings

KEYS: Final = (*NODE_KEYS, "advertised_host", "kafka_host", "kafka_port", "listeners", "wal")
KAFKA_PORT_DEFAULT: Final = 9092
WALS: Final = {"file": WalKind.FILE, "object": WalKind.OBJECT}


BrokerConfiguration: TypeAlias = ServiceConfiguration[BrokerOptions, BrokerSettings]


def read_configuration(path: Path) -> BrokerConfiguration:
    """Read and check a file.

    Raises:
        StartRefusedError: names the problem.
        SettingError: names the setting.
    """
    file = ConfigurationFile(path, KEYS)
    wal = file.content.get("wal", "file")
    if not isinstance(wal, str) or wal not in WALS:
        raise file.refused(f"wal {wal!r} is not one of {', '.join(WALS)}")
    node = node_options(file)
    try:
        listeners = read_listeners(file.content.get("listeners", []))
    except ListenerConfigurationError as error:
        raise file.refused(str(error)) from error
    options = BrokerOptions(
        node_id=node.node_id,
        data=Path(file.text("data", "a directory")).absolute(),
        controllers=node.controllers,
        kafka_host=file.text("kafka_host", default="127.0.0.1"),
        kafka_port=file.integer("kafka_port", 0, 65_535, default=KAFKA_PORT_DEFAULT),
        advertised_host=file.text("advertised_host", default=""),
        object_store=node.object_store,
        wal=WALS[wal],
        membership=node.membership,
        listeners=listeners,
    )
    return file.configuration(options, BrokerSettings)
