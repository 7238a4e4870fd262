"""Orchestration patterns (document 001, step 7): factories of graphs on the one graph engine."""
