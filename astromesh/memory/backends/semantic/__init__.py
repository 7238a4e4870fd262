"""Semantic memory: passages found by words, and by vectors where there is an embedder."""
