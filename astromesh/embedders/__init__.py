"""Texts to vectors: services, and one that needs no network."""
