"""The runtime: agents bootstrapped from YAML, and the twelve steps that every request takes."""
