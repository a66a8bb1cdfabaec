"""From a waiting operation to a committed batch and its answer; leadership and its duties."""
