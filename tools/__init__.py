"""Development tools; not installed with the project."""
