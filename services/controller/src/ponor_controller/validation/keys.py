"""Keys: small values that the cluster keeps, put once.

What lives here: put-if-absent, of one key or of many at once. Whoever comes second gets the first one's value.
"""

from __future__ import annotations

from ponor.common.v1 import error_pb2
from ponor.controller.v1 import session_service_pb2 as wire
from ponor.metadata.v1 import records_pb2

from ponor_controller.validation.situation import Decision, Situation, refuse, require_count


def put_key(body: wire.PutKey, situation: Situation) -> Decision:
    """Put a value if the key has none; answer with the value it has."""
    decision = Decision()
    decision.result = wire.OperationResult(key_held=_put(body, situation, decision))
    return decision


def put_keys(body: wire.PutKeys, situation: Situation) -> Decision:
    """The same for many keys, all or none."""
    require_count(len(body.puts), situation.settings.keys_per_operation_max, "keys")
    if len({put.key for put in body.puts}) != len(body.puts):
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST, "a key is named twice in one operation; name it once"
        )
    decision = Decision()
    held = [_put(put, situation, decision) for put in body.puts]
    decision.result = wire.OperationResult(keys_held=wire.KeysHeld(held=held))
    return decision


def _put(body: wire.PutKey, situation: Situation, decision: Decision) -> wire.KeyHeld:
    settings = situation.settings
    if not 1 <= len(body.key.encode()) <= settings.key_bytes_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"a key has 1 to {settings.key_bytes_max} bytes, not {len(body.key.encode())}",
        )
    if len(body.value) > settings.value_bytes_max:
        raise refuse(
            error_pb2.ERROR_CODE_INVALID_REQUEST,
            f"the value of key {body.key!r} has {len(body.value)} bytes; at most {settings.value_bytes_max} are kept",
        )
    held = situation.view.keys.get(body.key)
    if held is not None:
        return wire.KeyHeld(value=held.value, created=False)
    put = records_pb2.KeyPut(key=body.key, value=body.value)
    decision.records.append(records_pb2.Record(key_put=put))
    return wire.KeyHeld(value=body.value, created=True)
