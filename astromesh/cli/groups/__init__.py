"""The commands that have commands below them: `astromesh keys create` …, one module for each."""
