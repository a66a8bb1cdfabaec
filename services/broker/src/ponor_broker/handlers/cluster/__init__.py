"""ApiVersions, features, and descriptions of brokers, controllers and log directories."""
