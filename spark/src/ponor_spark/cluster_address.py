"""Find a cluster's controllers and object store from the options: controllers, a local cluster's directory,
or brokers.

A broker reports both in two read-only configs; planning reads them with one small request. No records are
read from brokers here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ponor_kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ponor_kafka.messages.metadata import MetadataRequest, MetadataResponse

from ponor_spark.errors import ClusterUnreachableError, OptionError
from ponor_spark.kafka_client import METADATA_VERSION, BrokerConnection, NoBrokerError, ask_first
from ponor_spark.options import ClusterOptions

CONTROLLERS_CONFIG: Final = "ponor.controllers"
OBJECT_STORE_CONFIG: Final = "ponor.object.store"
"""Read-only broker configs for tools."""
BROKER_RESOURCE: Final = 4
DESCRIBE_CONFIGS_VERSION: Final = 4
CLUSTER_FILE: Final = "cluster.json"


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Addresses of a cluster.

    `object_store` may be unknown ("") until a broker is found through the controllers.
    """

    controllers: tuple[str, ...]
    object_store: str = ""
    brokers: tuple[str, ...] = ()


def find_cluster(options: ClusterOptions) -> ClusterAddress:
    """Find controllers and object store by the options; ask brokers only if no other option gives them.

    Raises:
        OptionError: the directory has no cluster.
        ClusterUnreachableError: no broker answers, or they are not Ponor brokers.
    """
    if options.controllers:
        found = ClusterAddress(options.controllers, brokers=options.bootstrap)
    elif options.data:
        found = _from_directory(options.data)
    else:
        found = ask_brokers(options.bootstrap)
    if options.store:
        found = replace(found, object_store=options.store)
    if not found.object_store and found.brokers:
        found = replace(found, object_store=ask_brokers(found.brokers).object_store)
    return found


def ask_brokers(brokers: tuple[str, ...]) -> ClusterAddress:
    """Return the addresses that the first answering broker reports.

    Raises:
        ClusterUnreachableError: no broker answers, or it is not a Ponor broker.
    """
    try:
        configs = ask_first(brokers, _broker_configs)
    except NoBrokerError as error:
        raise ClusterUnreachableError(
            f"kafka.bootstrap.servers: no broker answers ({error}); check the addresses, or give the options"
            " controllers and store"
        ) from error
    controllers, store = configs.get(CONTROLLERS_CONFIG), configs.get(OBJECT_STORE_CONFIG)
    if not controllers or not store:
        raise ClusterUnreachableError(
            f"kafka.bootstrap.servers: the brokers at {', '.join(brokers)} do not name their controllers;"
            " give brokers of a Ponor cluster"
        )
    return ClusterAddress(tuple(controllers.split(",")), store, brokers)


def _broker_configs(connection: BrokerConnection) -> dict[str, str]:
    described = connection.call(
        MetadataRequest(topics=[], allow_auto_topic_creation=False), METADATA_VERSION, MetadataResponse
    )
    resource = DescribeConfigsResource(
        BROKER_RESOURCE, str(described.controller_id), [CONTROLLERS_CONFIG, OBJECT_STORE_CONFIG]
    )
    answer = connection.call(
        DescribeConfigsRequest([resource]), DESCRIBE_CONFIGS_VERSION, DescribeConfigsResponse
    )
    return {
        config.name: config.value for result in answer.results for config in result.configs if config.value
    }


def _from_directory(directory: str) -> ClusterAddress:
    path = Path(directory) / CLUSTER_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return ClusterAddress(
            tuple(content["controllers"]),
            str(content["object_store"]),
            tuple(str(content["bootstrap"]).split(",")),
        )
    except OSError as error:
        raise OptionError(
            f"data: {path} cannot be read ({error.strerror}); give the data directory of `ponor up`"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"data: {path} describes no cluster; give the data directory of `ponor up`"
        ) from error
