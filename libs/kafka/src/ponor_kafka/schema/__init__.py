"""The notation of the protocol's facts (docs/formats/kafka-schema.md): its model, its reader and what a version sees."""
