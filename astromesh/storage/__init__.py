"""SQLite files, PostgreSQL, Redis: opened once and shared by adapters that do not know one another."""
