"""APIs of transactions."""
