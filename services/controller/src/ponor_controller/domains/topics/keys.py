"""Operations that store small values under keys. A value is never replaced: the first writer wins."""

from __future__ import annotations

from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2
from ponor_metadata.nouns.keys import KEYS

from ponor_controller.kernel.decisions import Decision, Situation, invalid, require_count
from ponor_controller.shared_rules.partition_rights import require_key_rights


def put_key(body: wire.PutKey, situation: Situation) -> Decision:
    """Store a value if the key has none; answer with the key's value."""
    records: list[records_pb2.Record] = []
    result = wire.OperationResult()
    _put(body, situation, records, result.key_held)
    return Decision(records, result)


def put_keys(body: wire.PutKeys, situation: Situation) -> Decision:
    """Like `put_key`, for many keys. Either all are stored or none."""
    require_count(len(body.puts), situation.settings.keys_per_operation_max, "keys")
    if len({put.key for put in body.puts}) != len(body.puts):
        raise invalid("the operation names a key twice; name it once")
    records: list[records_pb2.Record] = []
    result = wire.OperationResult()
    for put in body.puts:
        _put(put, situation, records, result.keys_held.held.add())
    return Decision(records, result)


def _put(
    body: wire.PutKey, situation: Situation, records: list[records_pb2.Record], answer: wire.KeyHeld
) -> None:
    """Fill record and answer in place, because separate messages would be copied."""
    settings, key, value = situation.settings, body.key, body.value
    if not 1 <= len(key.encode()) <= settings.key_bytes_max:
        raise invalid(f"the key has {len(key.encode())} bytes; it must have 1 to {settings.key_bytes_max}")
    if len(value) > settings.value_bytes_max:
        raise invalid(
            f"the value of key {key!r} has {len(value)} bytes; the limit is {settings.value_bytes_max}"
        )
    held = situation.view[KEYS].get(key)
    if held is not None:
        answer.value, answer.created = held.value, False
        return
    require_key_rights(key, situation)
    record = records_pb2.Record()
    put = record.key_put
    put.key, put.value = key, value
    records.append(record)
    answer.value, answer.created = value, True
