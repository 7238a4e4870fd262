"""SQLite files, PostgreSQL and Redis, each opened once and shared by all stores of a runtime."""
