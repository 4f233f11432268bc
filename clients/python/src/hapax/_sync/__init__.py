"""The blocking client, generated from ``_async``: see ``tools/unasync.py``."""
