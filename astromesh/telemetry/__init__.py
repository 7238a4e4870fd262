"""Observability: the event stream of runs, traces, logs, metrics and their export."""
