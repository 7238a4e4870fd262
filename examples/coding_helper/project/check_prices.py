"""The tests of the project."""

import unittest

from prices import with_tax


class Prices(unittest.TestCase):
    """What prices.py promises."""

    def test_tax_is_added(self) -> None:
        assert with_tax(100) == 120
