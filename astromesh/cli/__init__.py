"""The command line (docs/cli.md)."""
