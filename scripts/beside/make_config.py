"""Writes the benchmark agents into a folder: python make_config.py DIR MODEL_URL"""

import sys
from pathlib import Path

HEAD = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}, version: "1.0.0"}}
spec:
  identity: {{display_name: {name}, description: "benchmark agent"}}
  model:
    primary: {{provider: openai, model: "{model}", endpoint: "{url}", api_key: sk-bench, timeout: 60}}
  prompts: {{system: "You are {{{{ agent_name }}}}. {{{{ description }}}} Today is {{{{ current_date }}}}."}}
  orchestration: {{pattern: react, max_iterations: 10, timeout_seconds: 60}}
"""
SQLITE = "  memory:\n    conversational: {backend: sqlite, strategy: sliding_window, max_turns: 20}\n"
TOOLS = '  tools:\n    - {name: lookup, type: internal, function: "bench_tools:lookup"}\n'
GUARDS = """  guardrails:
    input:
      - {type: pii_detection, action: redact}
      - {type: topic_filter, forbidden_topics: [violence, illegal_activity], action: block}
      - {type: max_length, max_characters: 5000}
    output:
      - {type: content_filter, forbidden_keywords: [internal_only, classified], action: redact}
      - {type: cost_limit, max_tokens_per_turn: 4000}
      - {type: pii_detection, action: redact}
"""
AGENTS = {
    "plain": ("mock", ""),
    "sqlite": ("mock", SQLITE),
    "full": ("mock", SQLITE + GUARDS),
    "tools": ("mock+tools=2", TOOLS),
    "stream": ("mock+tokens=200", ""),
    "slow": ("mock+latency=1000", ""),
}


def main(folder: str, url: str) -> None:
    agents = Path(folder) / "agents"
    agents.mkdir(parents=True, exist_ok=True)
    for name, (model, rest) in AGENTS.items():
        (agents / f"{name}.agent.yaml").write_text(HEAD.format(name=name, model=model, url=url) + rest)


if __name__ == "__main__":
    main(*sys.argv[1:3])
