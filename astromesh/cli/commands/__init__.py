"""The commands, one module each with its options and its work. `astromesh.cli.main` loads what is called."""
