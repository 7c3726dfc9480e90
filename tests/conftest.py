"""How properties are searched: the suite draws the same examples always, test-slow new ones."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")
