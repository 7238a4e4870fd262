"""The tool kinds that YAML declares, one module each; loaded by entry point."""
