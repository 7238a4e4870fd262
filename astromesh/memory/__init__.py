"""Memory backends and strategies: where sessions are stored, and which part of a session a run sees."""
