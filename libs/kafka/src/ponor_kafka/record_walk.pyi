from ponor_kafka.primitives import Buffer
from ponor_kafka.record_rules import RecordWalk

def walk_records(
    data: Buffer,
    count: int,
    base_timestamp: int,
    is_fixed_timestamp: bool,
    keys_required: bool,
    timestamp_min: int,
    timestamp_max: int,
    faults_max: int,
) -> RecordWalk: ...
def first_at_or_after(
    data: Buffer, count: int, base_timestamp: int, timestamp: int, offset_delta_min: int
) -> tuple[int, int] | None: ...
def newest(
    data: Buffer, count: int, base_timestamp: int, offset_delta_min: int
) -> tuple[int, int] | None: ...
