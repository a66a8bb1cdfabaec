"""Open the Iceberg catalog of a job's table.

The catalog comes from pyiceberg's own configuration (.pyiceberg.yaml, PYICEBERG_* variables), plus properties
on the command line. Credentials belong in the configuration, because all users of the machine can see a
command line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ponor_spark.errors import OptionError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_CREDENTIAL: Final = re.compile(r"secret|password|credential|token|access.?key|://[^/]*:[^/]*@")


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Connect.

    Raises:
        OptionError: a credential on the command line, or an unknown catalog.
    """
    from pyiceberg.catalog import load_catalog

    for key, value in properties.items():
        if _CREDENTIAL.search(key.lower()) or _CREDENTIAL.search(value):
            raise OptionError(
                f"--catalog-property: {key} is a credential, and other users can see a command line; write it"
                " into .pyiceberg.yaml or PYICEBERG_CATALOG__* of the environment"
            )
    try:
        return load_catalog(name, **properties)
    except (ValueError, ImportError) as error:
        raise OptionError(
            f"--catalog: {name} cannot be opened ({error}); describe it in .pyiceberg.yaml, or give"
            " --catalog-property type=… and uri=…"
        ) from error
