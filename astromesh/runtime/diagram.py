"""An agent as a Mermaid diagram: its pattern, and what surrounds it (models, tools, workers, guardrails)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from astromesh.config.agent import AgentModel, GuardrailRule, ToolBlock
from astromesh.config.checks import AGENT_LISTS
from astromesh.graph.topology import mermaid_text
from astromesh.orchestration.base import Drawable
from astromesh.runtime.agent import Agent

#: keys of a tool that name what it reaches; an address is left out, because it may hold a secret
_TOOL_TARGETS = ("pipeline", "server", "agent", "function")


def agent_diagram(agent: Agent) -> str:
    """Returns an agent as a Mermaid flowchart. A pattern that is not a graph is one box."""
    spec = agent.manifest.spec
    lines = ["flowchart TD", f'    subgraph pattern["{mermaid_text(agent.pattern_name)}"]']
    lines += [f"    {line}" for line in _pattern(agent)]
    lines.append("    end")
    workers = getattr(spec.orchestration.options, AGENT_LISTS.get(agent.pattern_name, ""), ())
    permitted = spec.permissions.tools
    groups = (
        ("input", "input guardrails", map(_rule, spec.guardrails.input), "input --> pattern"),
        ("output", "output guardrails", map(_rule, spec.guardrails.output), "pattern --> output"),
        ("models", "models", _models(spec.model), "pattern -.-> models"),
        ("tools", "tools", (_tool(tool, permitted) for tool in spec.tools), "pattern -.-> tools"),
        ("workers", "workers", map(str, workers), "pattern -.-> workers"),
    )
    for name, title, labels, edge in groups:
        lines += _group(name, title, labels, edge)
    return "\n".join(lines)


def _pattern(agent: Agent) -> Iterable[str]:
    """Returns the lines of the pattern's own diagram, without its head."""
    if not isinstance(agent.pattern, Drawable):
        return (f'    pattern_box["{mermaid_text(agent.pattern_name)}"]',)
    return agent.pattern.to_mermaid(agent.max_iterations).splitlines()[1:]


def _group(name: str, title: str, labels: Iterable[str], edge: str) -> Iterator[str]:
    boxes = [f'        {name}{i}["{mermaid_text(label)}"]' for i, label in enumerate(labels)]
    if boxes:
        yield from (f'    subgraph {name}["{title}"]', *boxes, "    end", f"    {edge}")


def _rule(rule: GuardrailRule) -> str:
    action = rule.plugin_value("action")
    return f"{rule.type}: {action}" if action else rule.type


def _models(model: AgentModel) -> Iterator[str]:
    for role, models in model.sets():
        for place, block in enumerate(models.blocks()):
            notes = [role] * bool(role) + ["fallback"] * bool(place) + ["skipped"] * bool(block.skipped)
            name = f"{block.provider}/{block.model}" if block.model else block.provider
            yield f"{name} ({', '.join(notes)})" if notes else name


def _tool(tool: ToolBlock, permitted: tuple[str, ...] | None) -> str:
    target = next((str(value) for key in _TOOL_TARGETS if (value := tool.plugin_value(key))), "")
    notes = [f"{tool.type} {target}".strip()]
    notes += ["approval"] * (tool.approval != "none")
    notes += ["not permitted"] * (permitted is not None and tool.name not in permitted)
    return f"{tool.name} ({', '.join(notes)})"
