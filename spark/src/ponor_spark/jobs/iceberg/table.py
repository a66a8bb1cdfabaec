"""The Iceberg table in pyiceberg's catalogs: creation, history for the ledger, and the commit.

One commit atomically adds the files, the offsets in the summary of the snapshot, and the copy of the offsets
in the table property `ponor.offsets`. `ledger.py` and `sink.py` decide what to commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ponor_spark.errors import OptionError
from ponor_spark.jobs.iceberg.ledger import MIRROR, Ancestor, Ends, History, mirror_property

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

ANCESTORS_MAX: Final = 1_000_000
"""Maximum number of snapshots that are read. A table keeps all snapshots that have not expired."""
FORMAT_VERSION_MIN: Final = 2
RETRIES: Final = "commit.retry.num-retries"


class IcebergTable:
    """One table in a catalog. Every use reloads it, because there are other writers."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self._catalog = catalog
        self.name = name

    def ensure(self, schema: pa.Schema) -> Table:
        """Create the table with these columns if it is missing.

        Raises:
            OptionError: the table lacks a column of the frame, or has format version 1, whose snapshots have
                no order.
        """
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._catalog.load_table(self.name)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            return self._catalog.create_table_if_not_exists(self.name, schema=schema)
        if table.metadata.format_version < FORMAT_VERSION_MIN:
            raise OptionError(
                f"table: {self.name} is of Iceberg's format version {table.metadata.format_version}; upgrade"
                f" it to {FORMAT_VERSION_MIN} (the table property format-version)"
            )
        have = {field.name for field in table.schema().fields}
        missing = [name for name in schema.names if name not in have]
        if missing:
            raise OptionError(
                f"table: {self.name} has no column {missing[0]}; add it to the table, or remove it from the"
                " option columns"
            )
        return table

    def load(self) -> Table:
        """Load the current table."""
        return self._catalog.load_table(self.name)


def history_of(table: Table) -> History:
    """Return the ledger's input: summaries of the current snapshot's ancestors, newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    ancestors: list[Ancestor] = []
    current = table.current_snapshot()
    while current is not None and len(ancestors) < ANCESTORS_MAX:
        summary: Mapping[str, str] = {} if current.summary is None else current.summary.additional_properties
        ancestors.append(Ancestor(current.snapshot_id, current.sequence_number, summary))
        parent = current.parent_snapshot_id
        current = None if parent is None else by_id.get(parent)
    return History(ancestors, frozenset(by_id), table.properties.get(MIRROR))


def stage(table: Table, files: Sequence[Any], properties: Mapping[str, str], ends: Ends) -> Transaction:
    """Write manifests for one append and put it into a transaction together with the copy of the offsets in
    the table property. It becomes visible with `commit_transaction`.

    The transaction is tried once. pyiceberg's own retry would append the same files on top of any newer
    snapshot without checking it, and that snapshot may contain the same batch, from a driver that was
    believed dead. The number of retries is a table property; this function overrides it only in the
    copy that the transaction reads.
    """
    from pyiceberg.table import Table

    metadata = table.metadata.model_copy(update={"properties": {**table.metadata.properties, RETRIES: "0"}})
    once = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)
    transaction = once.transaction()
    with transaction.update_snapshot(snapshot_properties=dict(properties)).fast_append() as append:
        for file in files:
            append.append_data_file(file)
        snapshot_id = append.snapshot_id
    transaction.set_properties(mirror_property(snapshot_id, metadata.next_sequence_number(), ends))
    return transaction
