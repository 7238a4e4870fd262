"""Episodic memory: what happened in a session."""
