"""What only a look at the whole tells: names that exist, keys that contradict each other, templates …"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import jsonschema_rs

from astromesh.config.agent import AgentManifest, ApprovalRule, Stream, ToolBlock
from astromesh.config.environment import shown
from astromesh.config.fields import JsonMap
from astromesh.config.keys import did_you_mean, listed
from astromesh.config.mcp import MCPServer
from astromesh.config.nodes import Node, Place, Steps
from astromesh.config.runtime import Auth
from astromesh.config.seams import GraphMention, TemplateCheck, Unsupported

#: patterns whose `max_iterations` is not the tool loop's: the engine's cap, or none at all
ITERATIONS: Mapping[str, int | None] = {"graph": 50, "autonomous": 50, "reasoning": None}
#: patterns of unbounded length: any text may turn out not to be the answer
UNBOUNDED = frozenset({"autonomous"})
#: patterns that run other agents → the key that lists them
CALLED: Mapping[str, str] = {"supervisor": "workers", "swarm": "agents"}
#: roles that patterns ask for by themselves; without models of their own they have the main ones
USUAL_ROLES = ("planner", "judge", "worker", "critic", "lightweight")
#: keys of a server by transport: what it needs, what it cannot have
_TRANSPORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "http": ("url", ("command", "args", "env", "cwd")),
    "sse": ("url", ("command", "args", "env", "cwd")),
    "stdio": ("command", ("url", "headers", "forward_identity")),
}
#: bytes that a secret of HS256 must have (RFC 7518, 3.2)
_MIN_SECRET = 32

Names = AbstractSet[str] | None


class Finding(NamedTuple):
    """What is wrong at a path of a file. `place` where it is not the path's own."""

    steps: Steps
    message: str
    hint: str = ""
    place: Place | None = None


class Known(NamedTuple):
    """Names that exist beside the agent in question; `None` where a file that cannot be read may hold more.

    Args:
        broken: `RAG pipeline NAME`, `graph NAME` → the file with its faults.
    """

    agents: Names
    pipelines: Names
    graphs: Names
    servers: Names
    broken: Mapping[str, str]


# -- agents --------------------------------------------------------------------------------------------------


def agent(
    manifest: AgentManifest, root: Node, written: Node, known: Known, check: TemplateCheck | None
) -> Iterator[Finding]:
    """What is wrong with an agent beyond its single keys.

    Args:
        root: the document that the record was made from, with defaults and without what has faults.
        written: the document as written.
    """
    yield from _tools(manifest, known)
    yield from _permissions(manifest, written)
    yield from _orchestration(manifest, root, known)
    yield from _stream(manifest)
    yield from _schemas(manifest)
    if check is not None:
        yield from _templates(manifest, root, check)


def _tools(manifest: AgentManifest, known: Known) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for i, tool in enumerate(manifest.spec.tools):
        at: Steps = ("spec", "tools", i)
        if tool.name in seen:
            yield Finding(
                (*at, "name"), f"the tool {tool.name!r} is declared twice, first as tools[{seen[tool.name]}]"
            )
        seen.setdefault(tool.name, i)
        yield from _references(tool, at, known)


def _references(tool: ToolBlock, at: Steps, known: Known) -> Iterator[Finding]:
    match tool.type:
        case "rag":
            yield from _exists(
                tool.own("pipeline"), known.pipelines, "RAG pipeline", (*at, "pipeline"), known
            )
        case "mcp":
            yield from _of_several(tool, at)
            yield from _exists(tool.own("server"), known.servers, "MCP server", (*at, "server"), known)
        case "agent":
            yield from _exists(tool.own("agent"), known.agents, "agent", (*at, "agent"), known)


def _of_several(tool: ToolBlock, at: Steps) -> Iterator[Finding]:
    """Keys that cannot hold for each of several tools."""
    for key in ("description", "parameters", "idempotency"):
        if key in tool.model_fields_set:
            yield Finding((*at, key), "has no effect: the server's tools have their own", "remove it")


def _exists(name: Any, names: Names, what: str, at: Steps, known: Known) -> Iterator[Finding]:
    if not isinstance(name, str):
        return
    if file := known.broken.get(f"{what} {name}"):
        yield Finding(at, f"the {what} {name!r} has faults", f"see {file}")
    elif names is not None and name not in names:
        yield Finding(at, f"there is no {what} {name!r}", did_you_mean(name, names) or listed(names))


def _permissions(manifest: AgentManifest, written: Node) -> Iterator[Finding]:
    """An MCP tool may stand for many names, which are known only when its server was asked."""
    tools = [tool for _, tool in written.children("spec", "tools")]
    declared = {tool.text("name") for tool in tools}
    if any(tool.text("type") == "mcp" for tool in tools):
        return
    at, pattern = ("spec", "orchestration"), manifest.spec.orchestration.pattern
    lists = (("spec", "permissions", "tools"), (*at, "allowed_tools"), (*at, pattern, "allowed_tools"))
    for steps in lists:
        for i, node in written.children(*steps):
            name = node.value
            if isinstance(name, str) and name not in declared:
                hint = did_you_mean(name, declared) or listed(declared)
                yield Finding((*steps, i), f"there is no tool {name!r} in spec.tools", hint)


def _orchestration(manifest: AgentManifest, root: Node, known: Known) -> Iterator[Finding]:
    block, at = manifest.spec.orchestration, ("spec", "orchestration")
    if block.pattern == "reasoning" and root.get(*at, "max_iterations") is not None:
        yield Finding((*at, "max_iterations"), "the pattern reasoning is bound by its budgets", "remove it")
    if block.pattern == "graph":
        yield from _exists(block.own("graph"), known.graphs, "graph", (*at, "graph"), known)
    if block.pattern == "swarm" and manifest.spec.tools:
        yield Finding(
            ("spec", "tools"), "has no effect: the agents of a swarm use their own tools", "remove it"
        )
    yield from _roles(manifest, root)
    key = CALLED.get(block.pattern)
    for steps in ((*at, key), (*at, block.pattern, key)) if key else ():
        for i, node in root.children(*steps):
            yield from _exists(node.value, known.agents, "agent", (*steps, i), known)


def _roles(manifest: AgentManifest, root: Node) -> Iterator[Finding]:
    """Roles of branches and stages: the agent's own, or the usual ones, which may be without models."""
    block, at = manifest.spec.orchestration, ("spec", "orchestration")
    known = {*USUAL_ROLES, *manifest.spec.model.roles}
    for key in ("branches", "stages"):
        for steps in ((*at, key), (*at, block.pattern, key)):
            for i, part in root.children(*steps):
                role = part.text("role")
                if role and role not in known:
                    hint = did_you_mean(role, known) or listed(known)
                    yield Finding((*steps, i, "role"), f"there is no role {role!r} in spec.model.roles", hint)


def graph_needs(
    manifest: AgentManifest, graph: str, mentions: Iterable[tuple[GraphMention, str]]
) -> Iterator[Finding]:
    """Tools and roles that the agent's graph names and the agent does not have.

    Args:
        mentions: each with where it stands, `FILE:LINE:COLUMN`.
    """
    tools = (
        None if any(t.type == "mcp" for t in manifest.spec.tools) else {t.name for t in manifest.spec.tools}
    )
    known: Mapping[str, tuple[Names, str]] = {
        "tool": (tools, "spec.tools"),
        "role": ({*USUAL_ROLES, *manifest.spec.model.roles}, "spec.model.roles"),
    }
    for mention, where in mentions:
        names, place = known[mention.what]
        if names is not None and mention.name not in names:
            hint = did_you_mean(mention.name, names) or listed(names)
            message = f"the graph {graph!r} names the {mention.what} {mention.name!r} ({where})"
            yield Finding(("spec", "orchestration", "graph"), f"{message}, which is not in {place}", hint)


def _stream(manifest: AgentManifest) -> Iterator[Finding]:
    written = manifest.spec.stream
    reason = _needs_the_whole(manifest)
    if reason and written in ("token", "sentence"):
        yield Finding(("spec", "stream"), f"must be final: {reason}")


def released(manifest: AgentManifest) -> Stream:
    """How an agent's text is released."""
    return manifest.spec.stream or ("final" if _needs_the_whole(manifest) else "token")


def _needs_the_whole(manifest: AgentManifest) -> str:
    """Why text may leave only at the end, or nothing.

    A rule's `Options` may say so by a property `needs_whole_text`; a rule that blocks always does.
    """
    if manifest.spec.output_schema is not None:
        return "the answer is checked against output_schema"
    if manifest.spec.orchestration.pattern in UNBOUNDED:
        return (
            f"the pattern {manifest.spec.orchestration.pattern} does not know which of its steps is the last"
        )
    for rule in manifest.spec.guardrails.output:
        if rule.own("action") == "block" or getattr(rule.options, "needs_whole_text", False):
            return f"the output rule {rule.type} needs the whole text"
    return ""


def _schemas(manifest: AgentManifest) -> Iterator[Finding]:
    if manifest.spec.output_schema is not None:
        yield from _schema(manifest.spec.output_schema, ("spec", "output_schema"))
    for i, tool in enumerate(manifest.spec.tools):
        if isinstance(tool.approval, ApprovalRule) and tool.approval.arguments is not None:
            yield from _schema(tool.approval.arguments, ("spec", "tools", i, "approval", "arguments"))
        if tool.parameters is None:
            continue
        at: Steps = ("spec", "tools", i, "parameters")
        yield from _schema(tool.parameters, at)
        if tool.parameters.get("type") != "object":
            yield Finding(at, "must have type: object, as arguments come by name")


def _schema(schema: JsonMap, at: Steps) -> Iterator[Finding]:
    try:
        # as it is compiled for a run: nothing is fetched, and patterns match in linear time
        jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError as error:
        yield Finding((*at, *error.instance_path), f"is no JSON Schema: {error.message}")
    except jsonschema_rs.ReferencingError as error:
        yield Finding(at, f"is no JSON Schema: {error}")


def _templates(manifest: AgentManifest, root: Node, check: TemplateCheck) -> Iterator[Finding]:
    yield from _template(root, ("spec", "prompts", "system"), check)
    for i, tool in enumerate(manifest.spec.tools):
        if tool.type == "agent":
            yield from _template(root, ("spec", "tools", i, "context_transform"), check)
        if isinstance(tool.approval, ApprovalRule) and tool.approval.when:
            at = ("spec", "tools", i, "approval", "when")
            found = check("{{ " + tool.approval.when + " }}")
            for wrong in found.every() if found else ():
                yield Finding(at, f"is no Jinja expression: {wrong.message}")


def _template(root: Node, at: Steps, check: TemplateCheck) -> Iterator[Finding]:
    node = root.get(*at)
    if node is None or not isinstance(node.value, str):
        return
    found = check(node.value)
    for wrong in found.every() if found else ():
        place = Place(node.place.line + wrong.line, 1) if node.literal else node.place
        where = "" if node.literal or wrong.line == 1 else f" (line {wrong.line} of the text)"
        yield Finding(at, f"is no Jinja template: {wrong.message}{where}", place=place)


# -- other files ---------------------------------------------------------------------------------------------


def server(name: str, record: MCPServer) -> Iterator[Finding]:
    """Keys that do not fit an MCP server's transport."""
    at: Steps = ("spec", "servers", name)
    needed, foreign = _TRANSPORTS[record.transport]
    if not getattr(record, needed):
        yield Finding((*at, needed), f"is missing: transport {record.transport} needs it")
    for key in foreign:
        if key in record.model_fields_set:
            yield Finding((*at, key), f"has no effect with transport {record.transport}", "remove it")


def authentication(auth: Auth, env: Mapping[str, str]) -> Iterator[Finding]:
    """What tokens cannot be checked with, or what somebody may take for a protection that is none."""
    at: Steps = ("spec", "auth", "jwt")
    given = [key for key in ("issuer", "audience", "jwks_url", "secret_env") if getattr(auth.jwt, key)]
    if auth.mode not in ("jwt", "both"):
        for key in given:
            yield Finding((*at, key), f"has no effect with mode: {auth.mode}", "mode: jwt or both")
        return
    if not {"jwks_url", "secret_env"} & {*given}:
        yield Finding(at, f"mode {auth.mode} needs jwks_url or secret_env")
    if auth.jwt.jwks_url:
        for key in ("issuer", "audience"):
            if key not in given:
                yield Finding((*at, key), "is missing: its issuer signs tokens for others, too")
    if name := auth.jwt.secret_env:
        yield from _secret(env.get(name, ""), shown(name, "secret_env"), (*at, "secret_env"))


def _secret(secret: str, name: str, at: Steps) -> Iterator[Finding]:
    size = len(secret.encode())
    if not size:
        yield Finding(at, f"{name} is not set")
    elif size < _MIN_SECRET:
        yield Finding(at, f"the secret in {name} has {size} bytes; HS256 needs {_MIN_SECRET} or more")


def circles(edges: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, ...]]:
    """Every circle of agents that call each other, `(a, b, a)`; each ends where it began."""
    left = {name: list(called) for name, called in edges.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            yield tuple(circle)
            left[circle[0]].remove(circle[1])
        else:
            return


# -- not supported yet ---------------------------------------------------------------------------------------


def unsupported(kind: str, root: Node, table: Unsupported) -> Iterator[Finding]:
    """Keys that this runtime does not do yet."""
    for pattern, sentence in table.items():
        path, _, value = pattern.partition("=")
        head, *steps = path.split(".")
        if head != kind:
            continue
        for found, node in _matches(root, steps):
            if not value or fnmatchcase(_as_written(node.value), value):
                yield Finding(found, sentence)


def _as_written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matches(node: Node, steps: list[str]) -> Iterator[tuple[Steps, Node]]:
    if not steps:
        yield (), node
        return
    for key, child in node.entries.items():
        if steps[0] in ("*", str(key)):
            for rest, found in _matches(child, steps[1:]):
                yield (key, *rest), found
