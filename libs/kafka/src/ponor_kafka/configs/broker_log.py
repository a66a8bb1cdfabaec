"""Broker settings: logs, and the defaults of topics."""

from typing import Final

BROKER_LOG: Final = """\
alter.config.policy.class.name: class = null
  no effect: Class that validates changes of settings.
auto.create.topics.enable: boolean = true
  in force: Whether a metadata request for an unknown topic creates it.
compression.gzip.level: int = -1; 1..9 or -1; cluster-wide
  in force: Default of the topic setting with the same name.
compression.lz4.level: int = 9; 1..17; cluster-wide
  in force: Default of the topic setting with the same name.
compression.type: string = producer; uncompressed | zstd | lz4 | snappy | gzip | producer; cluster-wide
  in force: Default of the topic setting with the same name.
compression.zstd.level: int = 3; -131072..22; cluster-wide
  in force: Default of the topic setting with the same name.
cordoned.log.dirs: list =; per-broker
  no effect: Log directories that get no new partitions; here a broker has one virtual directory.
create.topic.policy.class.name: class = null
  no effect: Class that validates the creation of topics.
default.replication.factor: int = 1
  no effect: Default replication factor of a new topic; here the number of replicas has no meaning.
delete.topic.enable: boolean = true
  fixed: Whether topics can be deleted; they always can.
log.cleaner.backoff.ms: long = 15000; 0..; cluster-wide
  no effect: Pause of the log cleaner when there is nothing to clean.
log.cleaner.dedupe.buffer.size: long = 134217728; cluster-wide
  no effect: Memory of all cleaner threads for the map of keys.
log.cleaner.delete.retention.ms: long = 86400000; 0..; cluster-wide
  in force: Default of the topic setting delete.retention.ms.
log.cleaner.enable: boolean = true
  no effect: Whether the log cleaner runs.
log.cleaner.io.buffer.load.factor: double = 0.9; cluster-wide
  no effect: Maximum load factor of the cleaner's map of keys.
log.cleaner.io.buffer.size: int = 524288; 0..; cluster-wide
  no effect: Memory of all cleaner threads for reading and writing.
log.cleaner.io.max.bytes.per.second: double = 1.7976931348623157E308; cluster-wide
  no effect: Maximum bytes per second that the log cleaner reads and writes.
log.cleaner.max.compaction.lag.ms: long = 9223372036854775807; 1..; cluster-wide
  in force: Default of the topic setting max.compaction.lag.ms.
log.cleaner.min.cleanable.ratio: double = 0.5; 0..1; cluster-wide
  in force: Default of the topic setting min.cleanable.dirty.ratio.
log.cleaner.min.compaction.lag.ms: long = 0; 0..; cluster-wide
  in force: Default of the topic setting min.compaction.lag.ms.
log.cleaner.threads: int = 1; 1..; cluster-wide
  no effect: Threads of the log cleaner.
log.cleanup.policy: list = delete; items: compact | delete; cluster-wide
  in force: Default of the topic setting cleanup.policy.
log.dir.failure.timeout.ms: long = 30000; 1..
  no effect: How long a broker with a failed log directory waits before it stops.
log.dirs: list = null
  no effect: Directories of the logs; here a write-ahead log and the object store hold the data.
log.dir: list = /tmp/kafka-logs
  no effect: Directory of the logs if log.dirs is not set; here a write-ahead log and the object store hold the data.
log.flush.interval.messages: long = 9223372036854775807; 1..; cluster-wide
  no effect: Default of the topic setting flush.messages.
log.flush.interval.ms: long = null; cluster-wide
  no effect: Default of the topic setting flush.ms.
log.flush.offset.checkpoint.interval.ms: int = 60000; 0..
  no effect: How often the recovery points of logs are checkpointed.
log.flush.scheduler.interval.ms: long = 9223372036854775807
  no effect: How often the flusher checks for logs to sync.
log.flush.start.offset.checkpoint.interval.ms: int = 60000; 0..
  no effect: How often the start offsets of logs are checkpointed.
log.index.interval.bytes: int = 4096; 0..; cluster-wide
  no effect: Default of the topic setting index.interval.bytes.
log.index.size.max.bytes: int = 10485760; 4..; cluster-wide
  no effect: Default of the topic setting segment.index.bytes.
log.local.retention.bytes: long = -2; -2..; cluster-wide
  no effect: Default of the topic setting local.retention.bytes.
log.local.retention.ms: long = -2; -2..; cluster-wide
  no effect: Default of the topic setting local.retention.ms.
log.message.timestamp.after.max.ms: long = 3600000; 0..; cluster-wide
  in force: Default of the topic setting message.timestamp.after.max.ms.
log.message.timestamp.before.max.ms: long = 9223372036854775807; 0..; cluster-wide
  in force: Default of the topic setting message.timestamp.before.max.ms.
log.message.timestamp.type: string = CreateTime; CreateTime | LogAppendTime; cluster-wide
  in force: Default of the topic setting message.timestamp.type.
log.preallocate: boolean = false; cluster-wide
  no effect: Default of the topic setting preallocate.
log.retention.bytes: long = -1; cluster-wide
  in force: Default of the topic setting retention.bytes.
log.retention.check.interval.ms: long = 300000; 1..
  no effect: How often logs are checked for expired segments; here partitions are checked every few seconds.
log.retention.hours: int = 168
  in force: Default of retention.ms in hours, if neither minutes nor milliseconds are set.
log.retention.minutes: int = null
  in force: Default of retention.ms in minutes, if milliseconds are not set.
log.retention.ms: long = null; cluster-wide
  in force: Default of the topic setting retention.ms.
log.roll.hours: int = 168; 1..
  in force: Default of segment.ms in hours, if milliseconds are not set.
log.roll.jitter.hours: int = 0; 0..
  no effect: Default of segment.jitter.ms in hours, if milliseconds are not set.
log.roll.jitter.ms: long = null; cluster-wide
  no effect: Default of the topic setting segment.jitter.ms.
log.roll.ms: long = null; cluster-wide
  in force: Default of the topic setting segment.ms.
log.segment.bytes: int = 1073741824; 1048576..; cluster-wide
  in force: Default of the topic setting segment.bytes.
log.segment.delete.delay.ms: long = 60000; 0..; cluster-wide
  no effect: Default of the topic setting file.delete.delay.ms.
max.request.partition.size.limit: int = 2000; 1..
  in force: Maximum number of partitions in one DescribeTopicPartitions response.
message.max.bytes: int = 1048588; 0..; cluster-wide
  in force: Default of the topic setting max.message.bytes.
min.insync.replicas: int = 1; 1..; cluster-wide
  no effect: Default of the topic setting with the same name.
num.partitions: int = 1; 1..
  in force: Default number of partitions of a new topic.
num.recovery.threads.per.data.dir: int = 2; 1..; cluster-wide
  no effect: Threads per log directory that recover logs at start and flush them at stop.
unclean.leader.election.enable: boolean = false; cluster-wide
  no effect: Default of the topic setting with the same name.
"""
