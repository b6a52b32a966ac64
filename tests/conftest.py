"""For all tests: properties are tried on few examples, and judged by what they find, never by the clock."""

from hypothesis import settings

settings.register_profile("eyas", max_examples=30, deadline=None)
settings.load_profile("eyas")
