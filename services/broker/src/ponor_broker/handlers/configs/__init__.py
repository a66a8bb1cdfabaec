"""DescribeConfigs, AlterConfigs and ListConfigResources."""
