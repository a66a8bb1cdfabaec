"""Dynamic settings of consumer, share and streams groups (KIP-848). Brokers keep the groups themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ponor.metadata.v1 import records_pb2 as records
from ponor_runtime.identity import TenantId

from ponor_metadata.nouns.cluster import TENANTS
from ponor_metadata.tables.columns import SETTINGS, TEXTS
from ponor_metadata.tables.schema import FIRST_TWO_FIELDS, Noun, Schema, Section, View


class GroupConfigsRow(NamedTuple):
    """Dynamic settings of a group, which need not exist. A row has at least one setting."""

    tenant_id: TenantId
    group_id: str
    configs: Mapping[str, str]


GROUP_CONFIGS: Final[Schema[tuple[TenantId, str], GroupConfigsRow]] = Schema(
    "group_configs",
    GroupConfigsRow,
    FIRST_TWO_FIELDS,
    (Section(23, (TEXTS, TEXTS, SETTINGS), weighed=(1, 2)),),
)


def group_configs_set(view: View, record: records.GroupConfigsSet) -> None:
    """Replace all settings of a group. A record without settings deletes the row."""
    tenant_id = TenantId(record.tenant_id)
    assert tenant_id in view[TENANTS], f"tenant {tenant_id!r} does not exist"
    assert record.group_id, "a group id is not empty"
    if record.configs:
        view[GROUP_CONFIGS].put(GroupConfigsRow(tenant_id, record.group_id, dict(record.configs)))
    else:
        key = (tenant_id, record.group_id)
        assert key in view[GROUP_CONFIGS], f"group {record.group_id!r} has no settings to remove"
        view[GROUP_CONFIGS].delete(key)


def _check(view: View) -> None:
    for row in view[GROUP_CONFIGS]:
        assert row.tenant_id in view[TENANTS], f"group {row.group_id!r}: settings of an unknown tenant"
        assert row.group_id, "settings of a group without an id"
        assert row.configs, f"group {row.group_id!r}: a row without a setting"


NOUN: Final = Noun(schemas=(GROUP_CONFIGS,), rules=(group_configs_set,), check=_check)
