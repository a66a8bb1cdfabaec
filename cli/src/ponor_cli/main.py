"""Entry point of `ponor`: run a command, print an error as one line, set the exit code."""

from __future__ import annotations

import errno
import sys
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from ponor_runtime.lifecycle import end_process

from ponor_cli.errors import CommandError
from ponor_cli.lazy_commands import HELP_NAMES, LazyCommands

app = typer.Typer(
    name="ponor",
    cls=LazyCommands,
    help="Ponor: Kafka-compatible streaming that stores its data in object storage.",
    no_args_is_help=True,
    context_settings=dict(HELP_NAMES),
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ponor {version('ponor-cli')}")
        raise typer.Exit


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Declare the root group: `LazyCommands` adds the commands."""


def main() -> NoReturn:
    """Run the `ponor` script."""
    end_process(_exit_code())


def _exit_code() -> int:
    try:
        app(standalone_mode=True)
    except CommandError as error:
        print(f"ponor: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 141
    except OSError as error:
        print(f"ponor: {_describe_system_error(error)}", file=sys.stderr)
        return 1
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _describe_system_error(error: OSError) -> str:
    """Describe an error of the operating system, with a remedy where there is one."""
    what = f"{error.filename}: " if error.filename else ""
    remedy = "; free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{what}{error.strerror or error}{remedy}"
