"""APIs of the share coordinator."""
