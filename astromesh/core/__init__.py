"""The core services of a run: guardrails, memory, prompts, tools, model routing."""
