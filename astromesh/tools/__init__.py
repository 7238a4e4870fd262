"""The kinds of tools that YAML can declare: Python functions, webhooks, knowledge, other agents."""
