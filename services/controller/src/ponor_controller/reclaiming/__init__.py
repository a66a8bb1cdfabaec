"""The leader's duty to reclaim what trims and deletions leave behind, a bounded number of rows at a time."""
