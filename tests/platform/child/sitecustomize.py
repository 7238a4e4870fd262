"""Python reads this at the start of every process that tests start: the network guard holds there too."""

import os

from tests.platform.network import NetworkGuard

NetworkGuard(os.environ.get("ASTROMESH_TEST_NETWORK_REPORT")).install()
