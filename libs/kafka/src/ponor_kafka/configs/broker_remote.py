"""Broker settings: Kafka's tiered storage."""

from typing import Final

BROKER_REMOTE: Final = """\
follower.fetch.last.tiered.offset.enable: boolean = false; cluster-wide
  no effect: Whether a new follower starts at the last tiered offset.
remote.fetch.max.wait.ms: int = 500; 1..; cluster-wide
  no effect: How long a fetch waits for the remote tier.
remote.list.offsets.request.timeout.ms: long = 30000; 1..; cluster-wide
  no effect: How long ListOffsets waits for the remote tier.
remote.log.index.file.cache.total.size.bytes: long = 1073741824; 1..; cluster-wide
  no effect: Disk space for indexes fetched from the remote tier.
remote.log.manager.copier.thread.pool.size: int = 10; 1..; cluster-wide
  no effect: Threads that copy segments to the remote tier.
remote.log.manager.copy.max.bytes.per.second: long = 9223372036854775807; 1..; cluster-wide
  no effect: Bytes per second copied to the remote tier.
remote.log.manager.copy.quota.window.num: int = 11; 1..
  no effect: Samples kept for the quota of copies to the remote tier.
remote.log.manager.copy.quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the quota of copies to the remote tier.
remote.log.manager.expiration.thread.pool.size: int = 10; 1..; cluster-wide
  no effect: Threads that delete expired remote segments.
remote.log.manager.fetch.max.bytes.per.second: long = 9223372036854775807; 1..; cluster-wide
  no effect: Bytes per second fetched from the remote tier.
remote.log.manager.fetch.quota.window.num: int = 11; 1..
  no effect: Samples kept for the quota of fetches from the remote tier.
remote.log.manager.fetch.quota.window.size.seconds: int = 1; 1..
  no effect: Length of a sample of the quota of fetches from the remote tier.
remote.log.manager.follower.thread.pool.size: int = 2; 1..; cluster-wide
  no effect: Threads for the remote tier's tasks on followers.
remote.log.manager.task.interval.ms: long = 30000; 1..
  no effect: How often the remote tier's tasks run.
remote.log.manager.thread.pool.size: int = 2; 1..
  no effect: Threads for the remote tier's other tasks.
remote.log.metadata.custom.metadata.max.bytes: int = 128; 0..
  no effect: Largest custom metadata of a remote segment.
remote.log.metadata.manager.class.name: string = org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager; not empty
  no effect: Class that stores the metadata of remote segments.
remote.log.metadata.manager.class.path: string = null
  no effect: Class path of the class that stores the metadata of remote segments.
remote.log.metadata.manager.impl.prefix: string = rlmm.config.; not empty
  no effect: Prefix of the settings of the class that stores the metadata of remote segments.
remote.log.metadata.manager.listener.name: string = null; not empty
  no effect: Listener that the class that stores the metadata of remote segments connects to.
remote.log.reader.max.pending.tasks: int = 100; 1..
  no effect: Maximum number of queued reads of the remote tier.
remote.log.reader.threads: int = 10; 1..; cluster-wide
  no effect: Threads that read from the remote tier.
remote.log.storage.manager.class.name: string = null; not empty
  no effect: Class that stores remote segments.
remote.log.storage.manager.class.path: string = null
  no effect: Class path of the class that stores remote segments.
remote.log.storage.manager.impl.prefix: string = rsm.config.; not empty
  no effect: Prefix of the settings of the class that stores remote segments.
remote.log.storage.system.enable: boolean = false
  fixed: Kafka's tiered storage; always off because all data is in object storage.
"""
