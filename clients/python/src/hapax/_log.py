"""The logger. Keys, bodies and results are never logged; messages are named by their ids."""

import logging

logger = logging.getLogger("hapax")
