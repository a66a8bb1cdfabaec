"""The schema notation (docs/formats/kafka-schema.md): model and reader."""
