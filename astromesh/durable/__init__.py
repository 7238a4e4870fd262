"""Durable runs: where they are kept, and what dispatches them."""
