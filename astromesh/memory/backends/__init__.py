"""Stores of conversations and events, one module per database."""
