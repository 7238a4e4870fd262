"""One SQLite file for conversations, runs, traces and keys: adapters share it without knowing one another."""
