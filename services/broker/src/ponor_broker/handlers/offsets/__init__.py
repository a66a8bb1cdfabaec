"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""
