"""Memory backends and strategies: what sessions are kept in, and what part of one a run sees."""
