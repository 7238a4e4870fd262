"""A pytest plugin of `make mutants`: the first failure is all that counts, so what is quick runs first.

Most changes are noticed by a test of a single case. A property that fails is not shrunk to its smallest
example, which would take minutes.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, is_hypothesis_test, settings

settings.register_profile(
    "mutants",
    settings.get_profile("default"),
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    derandomize=True,
    database=None,
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if item.get_closest_marker("counts_calls") is None]
    items.sort(key=lambda item: is_hypothesis_test(getattr(item, "obj", None)))
