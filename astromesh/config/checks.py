"""Checks across files: names that must exist, keys that conflict, templates, schemas, call cycles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jsonschema_rs

from astromesh.config.agent import AgentManifest, ToolBlock
from astromesh.config.base import GraphMention, Node, Place, PromptCheck, Steps, TemplateCheck
from astromesh.config.environment import displayable_name
from astromesh.config.records import Block, IsJsonSchema, IsTemplate, JsonMap, marked_fields
from astromesh.config.runtime import Auth, MCPOAuth, MCPServer, RuntimeSpec
from astromesh.config.skills import READ_SKILL, FoundSkills
from astromesh.config.validation import suggest_name
from astromesh.providers.base import missing_provider
from astromesh.types import STANDARD_ROLES

#: patterns whose `max_iterations` is not that of the tool loop: the engine's cap, or none
PATTERN_ITERATIONS: Mapping[str, int | None] = {"graph": 50, "autonomous": 50, "reasoning": None}
#: patterns that run other agents → the key that lists them
AGENT_LISTS: Mapping[str, str] = {"supervisor": "workers", "swarm": "agents"}
#: transport → required key of a server, keys that it must not have
_TRANSPORTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "http": ("url", ("command", "args", "env", "cwd")),
    "sse": ("url", ("command", "args", "env", "cwd", "oauth")),
    "stdio": ("command", ("url", "headers", "forward_identity", "oauth")),
}
#: bytes that a secret of HS256 must have (RFC 7518, 3.2)
_MIN_SECRET_BYTES = 32

Names = AbstractSet[str] | None


class Finding(NamedTuple):
    """A fault at a path of a file. `place` where it is not that of the path."""

    steps: Steps
    message: str
    hint: str = ""
    place: Place | None = None


class KnownNames(NamedTuple):
    """Names outside an agent's file; `None` where an unreadable file may define more.

    Args:
        broken: `RAG pipeline NAME`, `graph NAME` → the file with its faults.
    """

    agents: Names
    pipelines: Names
    graphs: Names
    servers: Names
    broken: Mapping[str, str]


# -- agents --------------------------------------------------------------------------------------------------


def check_agent(
    manifest: AgentManifest, root: Node, written: Node, known: KnownNames, check: TemplateCheck | None
) -> Iterator[Finding]:
    """Checks an agent beyond its single keys.

    Args:
        root: the document of the record, with defaults and without invalid parts.
        written: the document as written.
    """
    yield from _tools(manifest, known)
    yield from _permissions(manifest, written)
    yield from _orchestration(manifest, root, known)
    yield from _stream(manifest)
    yield from _guardrails(manifest)
    yield from _schemas(manifest)
    yield from _cuts(manifest)
    if check is not None:
        yield from _templates(manifest, root, check)


def _tools(manifest: AgentManifest, known: KnownNames) -> Iterator[Finding]:
    seen: dict[str, int] = {}
    for i, tool in enumerate(manifest.spec.tools):
        at: Steps = ("spec", "tools", i)
        if tool.name in seen:
            message = f"duplicate tool `{tool.name}`, first declared as tools[{seen[tool.name]}]"
            yield Finding((*at, "name"), message, "Rename one of them.")
        seen.setdefault(tool.name, i)
        yield from _references(tool, at, known)


def check_skills(manifest: AgentManifest, found: FoundSkills) -> Iterator[Finding]:
    """Checks the skills of an agent, and that no tool of its own has the name of the tool that reads them."""
    for fault in found.faults:
        yield Finding(("spec", "skills"), str(fault))
    for i, tool in enumerate(manifest.spec.tools if manifest.spec.skills else ()):
        if tool.name == READ_SKILL:
            message = f"the name `{READ_SKILL}` is that of the tool that reads skills"
            yield Finding(("spec", "tools", i, "name"), message, "Rename it.")


def _references(tool: ToolBlock, at: Steps, known: KnownNames) -> Iterator[Finding]:
    match tool.type:
        case "rag":
            yield from _check_name(
                tool.plugin_value("pipeline"), known.pipelines, "RAG pipeline", (*at, "pipeline"), known
            )
        case "mcp":
            yield from _multi_tool_keys(tool, at)
            yield from _check_name(
                tool.plugin_value("server"), known.servers, "MCP server", (*at, "server"), known
            )
        case "agent":
            yield from _check_name(tool.plugin_value("agent"), known.agents, "agent", (*at, "agent"), known)


def _multi_tool_keys(tool: ToolBlock, at: Steps) -> Iterator[Finding]:
    """Yields keys that cannot apply to several tools."""
    for key in ("description", "parameters", "idempotency"):
        if key in tool.model_fields_set:
            yield Finding(
                (*at, key), "has no effect, because the server's tools have their own", "Remove it."
            )


def _check_name(name: Any, names: Names, what: str, at: Steps, known: KnownNames) -> Iterator[Finding]:
    if not isinstance(name, str):
        return
    if file := known.broken.get(f"{what} {name}"):
        yield Finding(at, f"the {what} `{name}` has faults", f"See {file}.")
    elif names is not None and name not in names:
        yield Finding(at, f"unknown {what} `{name}`", suggest_name(name, names))


def _permissions(manifest: AgentManifest, written: Node) -> Iterator[Finding]:
    """Checks lists of tools, unless the agent has MCP tools, whose names only their servers know."""
    tools = [tool for _, tool in written.children("spec", "tools")]
    declared = {tool.text("name") for tool in tools}
    if manifest.spec.skills:
        declared.add(READ_SKILL)
    if any(tool.text("type") == "mcp" for tool in tools):
        return
    at, pattern = ("spec", "orchestration"), manifest.spec.orchestration.pattern
    lists = (("spec", "permissions", "tools"), (*at, "allowed_tools"), (*at, pattern, "allowed_tools"))
    for steps in lists:
        for i, node in written.children(*steps):
            name = node.value
            if isinstance(name, str) and name not in declared:
                hint = suggest_name(name, declared)
                yield Finding((*steps, i), f"unknown tool `{name}`; it is not in spec.tools", hint)


def _orchestration(manifest: AgentManifest, root: Node, known: KnownNames) -> Iterator[Finding]:
    block, at = manifest.spec.orchestration, ("spec", "orchestration")
    if block.pattern == "reasoning" and root.get(*at, "max_iterations") is not None:
        yield Finding((*at, "max_iterations"), "has no effect with the pattern reasoning", "Use its budgets.")
    if block.pattern == "graph":
        yield from _check_name(block.plugin_value("graph"), known.graphs, "graph", (*at, "graph"), known)
    if block.pattern == "swarm" and manifest.spec.tools:
        yield Finding(
            ("spec", "tools"),
            "has no effect, because the agents of a swarm use their own tools",
            "Remove it.",
        )
    yield from _roles(manifest, root)
    key = AGENT_LISTS.get(block.pattern)
    for steps in ((*at, key), (*at, block.pattern, key)) if key else ():
        for i, node in root.children(*steps):
            yield from _check_name(node.value, known.agents, "agent", (*steps, i), known)


def _roles(manifest: AgentManifest, root: Node) -> Iterator[Finding]:
    """Checks the roles of branches and stages. The standard roles need no models."""
    block, at = manifest.spec.orchestration, ("spec", "orchestration")
    known = {*STANDARD_ROLES, *manifest.spec.model.roles}
    for key in ("branches", "stages"):
        for steps in ((*at, key), (*at, block.pattern, key)):
            for i, part in root.children(*steps):
                role = part.text("role")
                if role and role not in known:
                    hint = suggest_name(role, known)
                    yield Finding(
                        (*steps, i, "role"), f"unknown role `{role}`; it is not in spec.model.roles", hint
                    )


def check_graph_requirements(
    manifest: AgentManifest, graph: str, mentions: Iterable[tuple[GraphMention, str]]
) -> Iterator[Finding]:
    """Yields tools and roles that an agent's graph uses and the agent does not declare.

    Args:
        mentions: each with its place, `FILE:LINE:COLUMN`.
    """
    tools = (
        None if any(t.type == "mcp" for t in manifest.spec.tools) else {t.name for t in manifest.spec.tools}
    )
    known: Mapping[str, tuple[Names, str]] = {
        "tool": (tools, "spec.tools"),
        "role": ({*STANDARD_ROLES, *manifest.spec.model.roles}, "spec.model.roles"),
    }
    for mention, where in mentions:
        names, place = known[mention.what]
        if names is not None and mention.name not in names:
            model = missing_provider(mention.name) if mention.what == "role" else ""
            hint = model or suggest_name(mention.name, names)
            message = f"the graph `{graph}` uses the {mention.what} `{mention.name}` ({where})"
            yield Finding(("spec", "orchestration", "graph"), f"{message}, which is not in {place}", hint)


def check_graph_length(manifest: AgentManifest, graph: str, least: int) -> Iterator[Finding]:
    """Yields a limit with which no run of the agent's graph completes.

    Args:
        least: node executions that the graph needs.
    """
    limit = manifest.spec.orchestration.max_iterations
    if limit is not None and limit < least:
        message = f"is {limit}, but the graph `{graph}` needs at least {least} node executions"
        yield Finding(("spec", "orchestration", "max_iterations"), message, f"Write at least {least}.")


def _guardrails(manifest: AgentManifest) -> Iterator[Finding]:
    for i, rule in enumerate(manifest.spec.guardrails.output):
        if getattr(rule.options, "apply_to", None) is not None:
            at = ("spec", "guardrails", "output", i, "apply_to")
            yield Finding(at, "names parts of a request, which output rules do not check", "Remove it.")


def _stream(manifest: AgentManifest) -> Iterator[Finding]:
    reason = manifest.spec.whole_text_reason()
    if reason and manifest.spec.stream in ("token", "sentence"):
        yield Finding(("spec", "stream"), f"must be final: {reason}", "Write `stream: final`.")


def _cuts(manifest: AgentManifest) -> Iterator[Finding]:
    """Yields output rules that would cut a structured answer."""
    for i, rule in enumerate(
        manifest.spec.guardrails.output if manifest.spec.output_schema is not None else ()
    ):
        if getattr(rule.options, "action", None) == "truncate":
            yield Finding(
                ("spec", "guardrails", "output", i, "action"),
                "truncate does not work with output_schema: JSON that is cut is not JSON",
                "Write `action: block`, or limit the answer by budgets.",
            )


def _schemas(manifest: AgentManifest) -> Iterator[Finding]:
    for at, mark, schema in marked_fields(manifest.spec, IsJsonSchema, ("spec",)):
        if schema is not None:
            yield from _schema(schema, at)
            if mark.of_arguments and schema.get("type") != "object":
                yield Finding(at, "must have `type: object`, because arguments are passed by name")


def _schema(schema: JsonMap, at: Steps) -> Iterator[Finding]:
    try:
        # as for a run: nothing is fetched, and patterns match in linear time
        jsonschema_rs.validator_for(schema, offline=True, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError as error:
        yield Finding((*at, *error.instance_path), f"is not a valid JSON Schema: {error.message}")
    except jsonschema_rs.ReferencingError as error:
        yield Finding(at, f"is not a valid JSON Schema: {error}")


def _templates(manifest: AgentManifest, root: Node, check: TemplateCheck) -> Iterator[Finding]:
    for at, mark, text in marked_fields(manifest.spec, IsTemplate, ("spec",)):
        if not mark.expression:
            yield from _template(root, at, check)
        elif text and (found := check("{{ " + text + " }}")):
            for wrong in found.every():
                yield Finding(at, f"is not a valid Jinja expression: {wrong.message}")
    for i, tool in enumerate(manifest.spec.tools):
        if tool.type == "agent":
            yield from _template(root, ("spec", "tools", i, "context_transform"), check)


def _template(root: Node, at: Steps, check: TemplateCheck) -> Iterator[Finding]:
    node = root.get(*at)
    if node is None or not isinstance(node.value, str):
        return
    found = check(node.value)
    for wrong in found.every() if found else ():
        place, where = _line_of(node, wrong.line)
        yield Finding(at, f"is not a valid Jinja template: {wrong.message}{where}", place=place)


def _line_of(node: Node, line: int) -> tuple[Place, str]:
    """Returns the place of a line of a text, and the words that name it where YAML does not show it."""
    if node.literal:
        return Place(node.place.line + line, 1), ""
    return node.place, "" if line == 1 else f" (line {line} of the text)"


def unprovided_variables(manifest: AgentManifest, root: Node, check: PromptCheck) -> Iterator[Finding]:
    """Yields the variables of the system prompt that nothing but the context of a request provides."""
    at: Steps = ("spec", "prompts", "system")
    prompts, node = manifest.spec.prompts, root.get(*at)
    if node is None:
        return
    for found in check(prompts.system, prompts.variables):
        place, where = _line_of(node, found.line)
        message = f"nothing provides `{found.name}`{where}: it is empty unless a request's context has it"
        hint = found.hint or "Define it in prompts.variables, or write `| default(...)` if that is wanted."
        yield Finding(at, message, hint, place)


#: backend → the key of runtime.yaml that its empty `url` refers to, and what that must begin with
_SERVER_URLS: Mapping[str, tuple[str, str]] = {
    "postgres": ("storage.url", "postgres"),
    "pgvector": ("storage.url", "postgres"),
    "redis": ("redis.url", "redis"),
}


def backends_without_url(
    blocks: Iterable[tuple[Steps, Block | None]], runtime: RuntimeSpec
) -> Iterator[Finding]:
    """Yields the backends that need a server and have no URL of one: they cannot be opened."""
    urls = {"storage.url": runtime.storage.url, "redis.url": runtime.redis.url}
    for at, block in blocks:
        backend = getattr(block, "backend", "")
        if block is None or backend not in _SERVER_URLS or block.plugin_value("url"):
            continue
        key, start = _SERVER_URLS[backend]
        if not urls[key].get_secret_value().startswith(start):
            message = f"the backend {backend} has no URL: neither `url` here nor {key} of runtime.yaml"
            yield Finding((*at, "backend"), message, f"Set one of them to {_EXAMPLE_URLS[start]}.")


_EXAMPLE_URLS = {"postgres": "postgresql://USER@HOST/DATABASE", "redis": "redis://HOST"}


# -- other files ---------------------------------------------------------------------------------------------


def check_mcp_server(name: str, record: MCPServer) -> Iterator[Finding]:
    """Yields keys that do not fit an MCP server's transport."""
    at: Steps = ("spec", "servers", name)
    needed, foreign = _TRANSPORTS[record.transport]
    if not getattr(record, needed):
        yield Finding((*at, needed), f"required key is missing; transport {record.transport} needs it")
    for key in foreign:
        if key in record.model_fields_set:
            yield Finding((*at, key), f"has no effect with transport {record.transport}", "Remove it.")
    if record.oauth is not None:
        if record.forward_identity:
            yield Finding((*at, "forward_identity"), "a call has one token: the caller's, or that of `oauth`")
        yield from _check_oauth(record.oauth, (*at, "oauth"))


def _check_oauth(oauth: MCPOAuth, at: Steps) -> Iterator[Finding]:
    """Yields what a client lacks: nobody else than the issuer may get its secret."""
    secret = oauth.client_secret.get_secret_value()
    needs_all = oauth.grant == "client_credentials"
    known = {"client_id": oauth.client_id, "client_secret": secret, "issuer": oauth.issuer}
    for key in known if needs_all else ("client_id", "issuer") if secret else ():
        if not known[key]:
            why = "grant client_credentials" if needs_all else "client_secret"
            yield Finding((*at, key), f"required key is missing; {why} needs it")
    url = urlsplit(oauth.client_metadata_url)
    if oauth.client_metadata_url and (url.scheme != "https" or url.path in ("", "/")):
        yield Finding((*at, "client_metadata_url"), "it must be an https URL with a path")
    if oauth.issuer and urlsplit(oauth.issuer).scheme not in ("http", "https"):
        yield Finding((*at, "issuer"), "it must be an http(s) URL")


def check_authentication(auth: Auth, env: Mapping[str, str]) -> Iterator[Finding]:
    """Yields settings that cannot verify tokens, or that look like a protection and have no effect."""
    at: Steps = ("spec", "auth", "jwt")
    configured = [key for key in ("issuer", "audience", "jwks_url", "secret_env") if getattr(auth.jwt, key)]
    if auth.mode not in ("jwt", "both"):
        for key in configured:
            yield Finding((*at, key), f"has no effect with mode: {auth.mode}", "Use mode: jwt or both.")
        return
    if not {"jwks_url", "secret_env"} & {*configured}:
        yield Finding(at, f"mode {auth.mode} needs jwks_url or secret_env")
    if auth.jwt.jwks_url:
        for key in ("issuer", "audience"):
            if key not in configured:
                yield Finding(
                    (*at, key),
                    "required key is missing, because the issuer also signs tokens for other services",
                )
    if name := auth.jwt.secret_env:
        yield from _secret(env.get(name, ""), displayable_name(name, "secret_env"), (*at, "secret_env"))


def _secret(secret: str, name: str, at: Steps) -> Iterator[Finding]:
    size = len(secret.encode())
    if not size:
        yield Finding(at, f"{name} is not set", "Set it.")
    elif size < _MIN_SECRET_BYTES:
        yield Finding(at, f"the secret in {name} has {size} bytes; HS256 needs at least {_MIN_SECRET_BYTES}")


def check_prices(manifest: AgentManifest, below: Iterable[AgentManifest]) -> Iterator[Finding]:
    """Yields budgets of dollars that models without a price would never use up.

    Args:
        below: the agents that it may call, directly or not, whose dollars count too.
    """
    unknown = [f"`{name}`" for name in _without_price(manifest)]
    for agent in below:
        unknown += (f"`{name}` of the agent {agent.metadata.name}" for name in _without_price(agent))
    for name, budget in manifest.spec.budgets if unknown else ():
        if budget.cost_usd is not None:
            yield Finding(
                ("spec", "budgets", name, "cost_usd"),
                f"has no effect on models without a price: {', '.join(unknown)}",
                "Write it under `prices` of the model block or of its entry in providers.yaml.",
            )


def _without_price(manifest: AgentManifest) -> Iterable[str]:
    specs = (spec for _, models in manifest.spec.model.sets() for spec in models.specs())
    return dict.fromkeys(spec.block.name for spec in specs if spec.lacks_price)


def reachable_agents(edges: Mapping[str, Iterable[str]], names: Iterable[str]) -> set[str]:
    """Returns these agents and those that they may call, directly or not."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += edges.get(name, ())
    return found


def find_cycles(edges: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, ...]]:
    """Yields every cycle of agents that call each other as `(a, b, a)`."""
    left = {name: list(callees) for name, callees in edges.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1][::-1]
            yield tuple(cycle)
            left[cycle[0]].remove(cycle[1])
        else:
            return
