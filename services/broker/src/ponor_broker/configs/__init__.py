"""Settings as Kafka's clients see them: where each value comes from, and how it is described."""
