"""What holds for every test of the project."""

from hypothesis import settings

# How long an example takes says how busy the machine is; tests assert nothing about time.
settings.register_profile("ponor", deadline=None)
settings.load_profile("ponor")
