"""The settings of a topic."""

from typing import Final

TOPIC: Final = """\
cleanup.policy: list = delete; items: compact | delete
  in force: Cleanup of old records: delete removes whole segments by age and size, compact keeps the newest record of each key.
compression.gzip.level: int = -1; 1..9 or -1
  in force: Level at which this topic's records are compressed with gzip when compression.type is gzip.
compression.lz4.level: int = 9; 1..17
  in force: Level at which this topic's records are compressed with LZ4 when compression.type is lz4.
compression.type: string = producer; uncompressed | zstd | lz4 | snappy | gzip | producer
  in force: Codec of the batches in the log: producer keeps the codec of the producer, any other value recompresses.
compression.zstd.level: int = 3; -131072..22
  in force: Level at which this topic's records are compressed with Zstandard when compression.type is zstd.
delete.retention.ms: long = 86400000; 0..
  in force: How long a tombstone stays visible before compaction removes it.
file.delete.delay.ms: long = 60000; 0..
  no effect: Pause between dropping a segment and removing its files; here objects wait for the controller's destroy_delay_ms.
flush.messages: long = 9223372036854775807; 1..
  no effect: Records after which a log is synced; here every acknowledgement is synced.
flush.ms: long = 9223372036854775807; 0..
  no effect: Time after which a log is synced; here every acknowledgement is synced.
follower.replication.throttled.replicas: list =; throttled replicas
  no effect: Throttled followers; here nothing is copied between brokers.
index.interval.bytes: int = 4096; 0..
  no effect: Bytes between two entries of a segment's offset index; here every object has its own index.
internal.segment.bytes: int = null; unlisted
  in force: Size of a segment without the lower bound of segment.bytes; meant for tests.
leader.replication.throttled.replicas: list =; throttled replicas
  no effect: Throttled leaders; here nothing is copied between brokers.
local.retention.bytes: long = -2; -2..
  no effect: With tiered storage: bytes of a partition kept on the broker's disk.
local.retention.ms: long = -2; -2..
  no effect: With tiered storage: time that a partition's data stays on the broker's disk.
max.compaction.lag.ms: long = 9223372036854775807; 1..
  in force: Longest time before a record becomes eligible for compaction.
max.message.bytes: int = 1048588; 0..
  in force: Largest record batch that the topic accepts, as sent.
message.timestamp.after.max.ms: long = 3600000; 0..
  in force: How far ahead of the broker's clock the timestamp of a record may be.
message.timestamp.before.max.ms: long = 9223372036854775807; 0..
  in force: How far behind the broker's clock the timestamp of a record may be.
message.timestamp.type: string = CreateTime; CreateTime | LogAppendTime
  in force: Source of record timestamps: the producer's clock (CreateTime) or the broker's (LogAppendTime).
min.cleanable.dirty.ratio: double = 0.5; 0..1
  in force: Share of a log that must be uncompacted before compaction starts.
min.compaction.lag.ms: long = 0; 0..
  in force: Shortest time before a record becomes eligible for compaction.
min.insync.replicas: int = 1; 1..
  no effect: Replicas that must have a batch before acks=all is acknowledged; here every acknowledgement is durable.
preallocate: boolean = false
  no effect: Whether the file of a new segment is preallocated.
remote.log.copy.disable: boolean = false
  no effect: With tiered storage: stop copying to the remote tier.
remote.log.delete.on.disable: boolean = false
  no effect: With tiered storage: delete remote data when tiering is disabled.
remote.storage.enable: boolean = false
  fixed: Tiered storage of the topic; always off because all data is in object storage.
retention.bytes: long = -1
  in force: Size of a partition above which its oldest segments are deleted; -1 for no limit.
retention.ms: long = 604800000; -1..
  in force: Age of its newest record at which a segment is deleted; -1 for never.
segment.bytes: int = 1073741824; 1048576..
  in force: Size at which a partition's active segment is rolled.
segment.index.bytes: int = 10485760; 4..
  no effect: Size of a segment's index file.
segment.jitter.ms: long = 0; 0..
  no effect: Random part by which segment.ms is shortened, so that not all segments roll together.
segment.ms: long = 604800000; 1..
  in force: Age at which a partition's active segment is rolled regardless of its size.
unclean.leader.election.enable: boolean = false
  no effect: Whether a replica that lags may lead; here no replica lags.
"""
