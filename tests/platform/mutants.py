"""A pytest plugin of `make mutants`: a failing example is enough; the smallest one would take minutes."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile(
    "mutants",
    settings.get_profile("default"),
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
)
