"""Forced recovery of a local cluster: the offline step on one controller's directory, and the list of controllers that goes with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

from ponor_controller.configuration import read_configuration
from ponor_controller.consensus.errors import DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError
from ponor_controller.quorum.forced_recovery import ForcedRecovery, force_recovery
from ponor_rpc.grpc_network import GrpcNetwork
from ponor_runtime.lifecycle import StartRefusedError
from ponor_runtime.runtime import Runtime
from ponor_runtime.system import SystemClock, SystemRandomness
from ponor_runtime.system_disk import SystemDisk
from ponor_runtime.telemetry import Telemetry

from ponor_cli.directory import ClusterDirectory, read_json
from ponor_cli.errors import CommandError
from ponor_cli.quorum_file import QuorumFile


def force_local_recovery(directory: ClusterDirectory, controller: int) -> ForcedRecovery:
    """Make one controller of a stopped `ponor up` cluster its whole quorum.

    Raises:
        CommandError: the cluster runs, there is no such controller, or its log cannot be used.
    """
    _read(directory)
    with directory.lock():
        before, quorum = _read(directory), _read(directory)
        quorum.controllers = [place for place in before.controllers if place.number == controller]
        if not quorum.controllers:
            known = ", ".join(str(place.number) for place in before.controllers)
            raise CommandError(f"there is no controller {controller} in {directory.root}; it has {known}")
        quorum.formatted = True
        # First the list: a crash in between must not leave the others on it, who would go on as a majority of the former incarnation.
        quorum.write(directory)
        try:
            return asyncio.run(_force(directory, controller))
        except (DirectoryInUseError, RecordLogCorruptError, WrongDirectoryError, StartRefusedError) as error:
            before.write(directory)
            raise CommandError(str(error)) from error


def _read(directory: ClusterDirectory) -> QuorumFile:
    content = read_json(directory.quorum_file)
    if content is None:
        raise CommandError(f"no cluster in {directory.root} (no quorum.json)")
    return QuorumFile.open(directory, len(content["controllers"]))


async def _force(directory: ClusterDirectory, controller: int) -> ForcedRecovery:
    name = f"controller-{controller}"
    configuration = read_configuration(directory.config_file(name))
    # The configuration in a copy of the cluster's directory names the original.
    options = replace(configuration.options, data=directory.process_data(name).absolute())
    disk = SystemDisk()
    try:
        runtime = Runtime(SystemClock(), SystemRandomness(), disk, GrpcNetwork(), Telemetry(), _fail_stop)
        return await force_recovery(runtime, configuration.settings, options)
    finally:
        disk.close()


def _fail_stop(what: str, error: BaseException) -> NoReturn:
    raise CommandError(f"{what}: {error}") from error
