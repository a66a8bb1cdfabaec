"""Forced recovery: make one stopped controller the whole quorum, and update `quorum.json` of a
local cluster.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from ponor_controller.configuration import ControllerConfiguration, read_configuration
from ponor_controller.consensus.errors import (
    DirectoryInUseError,
    QuorumLivesError,
    RecordLogCorruptError,
    WrongDirectoryError,
)
from ponor_controller.startup.forced_recovery import ForcedRecovery, force_recovery
from ponor_runtime.lifecycle import StartRefusedError

from ponor_cli.errors import CommandError
from ponor_cli.local.command_runtime import command_runtime
from ponor_cli.local.directory import ClusterDirectory, read_json
from ponor_cli.local.quorum_file import QuorumFile


def force_local_recovery(directory: ClusterDirectory, controller: int) -> ForcedRecovery:
    """Make one controller of a stopped `ponor up` cluster its whole quorum.

    Raises:
        CommandError: the cluster runs, there is no such controller, or its log cannot be used.
    """
    _read(directory)
    name = f"controller-{controller}"
    with directory.lock():
        before, quorum = _read(directory), _read(directory)
        quorum.controllers = [place for place in before.controllers if place.number == controller]
        if not quorum.controllers:
            known = ", ".join(str(place.number) for place in before.controllers)
            raise CommandError(f"{directory.root} has no controller {controller}; it has {known}")
        quorum.formatted = True
        # Write quorum.json first: if it still listed the other controllers after a crash here, they
        # would continue as a majority of the old incarnation.
        quorum.write(directory)
        try:
            return _recovered(directory.config_file(name), directory.process_data(name))
        except CommandError:
            before.write(directory)
            raise


def force_one_recovery(configuration: Path) -> ForcedRecovery:
    """Make one stopped controller the whole quorum of a cluster that another supervisor runs.

    Args:
        configuration: the file with which that controller was started.

    Raises:
        CommandError: the controller runs, or its log cannot be used.
    """
    return _recovered(configuration)


def _read(directory: ClusterDirectory) -> QuorumFile:
    content = read_json(directory.quorum_file)
    if content is None:
        raise CommandError(f"no cluster in {directory.root} (no quorum.json)")
    return QuorumFile.open(directory, len(content["controllers"]))


def _recovered(file: Path, data: Path | None = None) -> ForcedRecovery:
    """Recover with a configuration file. `data` replaces the data directory in the file: in a
    copied cluster, the file names the original directory.
    """
    try:
        configuration = read_configuration(file)
        if data is not None:
            configuration = replace(
                configuration, options=replace(configuration.options, data=data.absolute())
            )
        return asyncio.run(_force(configuration))
    except (
        DirectoryInUseError,
        QuorumLivesError,
        RecordLogCorruptError,
        WrongDirectoryError,
        StartRefusedError,
    ) as error:
        raise CommandError(str(error)) from error


async def _force(configuration: ControllerConfiguration) -> ForcedRecovery:
    async with command_runtime(configuration.options.peer_tls) as runtime:
        return await force_recovery(runtime, configuration.settings, configuration.options)
