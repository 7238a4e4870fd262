"""What can be seen of a run: the event stream, traces, logs, metrics."""
