"""Doubles of plugins with few options, and good files of every kind, for the tests of the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from astromesh.channels.whatsapp import WhatsAppOptions
from astromesh.config.base import Node, Place
from astromesh.config.file import ConfigFile
from astromesh.config.parser import Document, parse_text
from astromesh.errors import MissingExtra, UnknownPlugin


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class OpenAI(Strict):
    name: str = ""
    model: str = Field(min_length=1)
    endpoint: str = "https://api.openai.com/v1"
    api_key: SecretStr | None = None
    timeout: float = 60
    parameters: dict[str, Any] = {}
    organization: str = ""
    retries: int = 2


class Usual(OpenAI):
    """A service with a key of its own variable; other endpoints of its format need none."""

    usual_variable: ClassVar[str] = "USUAL_KEY"
    usual_endpoints: ClassVar[tuple[str, ...]] = ("https://usual.example/v1",)
    endpoint: str = ""


class Embedded(Strict):
    pass


class Embedder(Strict):
    model: str = ""
    api_key: SecretStr | None = None
    dimensions: int = 256


class Rag(Strict):
    pipeline: str
    top_k: int = Field(5, ge=1)


class Webhook(Strict):
    endpoint: str
    method: Literal["GET", "POST"] = "POST"

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str) -> str:
        if not endpoint.startswith("http"):
            raise ValueError(f"{endpoint} is no http address")
        return endpoint


class Mcp(Strict):
    server: str
    tools: tuple[str, ...] = ()
    forward_identity: bool = False


class Internal(Strict):
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$", description="The function as `module:name`.")


class AgentTool(Strict):
    agent: str
    context_transform: str = ""


class Window(Strict):
    max_turns: int = 20


class Summary(Strict):
    keep_turns: int = 6


class Sqlite(Strict):
    path: str = ""


class Pii(Strict):
    action: Literal["redact", "block"] = "redact"

    @property
    def needs_whole_text(self) -> bool:
        return self.action == "block"


class Topics(Strict):
    forbidden_topics: list[str] = Field(min_length=1)
    action: Literal["redact", "block"] = "block"
    message: str = ""

    @property
    def needs_whole_text(self) -> bool:
        return self.action == "block"


class MaxLength(Strict):
    max_characters: int


class Plan(Strict):
    max_replans: int = 1


class Supervisor(Strict):
    workers: tuple[str, ...] = Field(min_length=1)
    max_parallel: int = 4


class GraphPattern(Strict):
    graph: str


class Reasoning(Strict):
    threshold: float = 0.7


class Markdown(Strict):
    max_tokens: int = 300
    overlap: int = 40


class Careless(BaseModel):
    """A plugin whose author did not forbid unknown keys."""

    level: int = 1


PLUGINS: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "providers": {"openai": OpenAI, "embedded": Embedded, "ollama": OpenAI, "usual": Usual},
    "embedders": {"openai": Embedder, "hashing": Embedder},
    "tools": {"rag": Rag, "webhook": Webhook, "mcp": Mcp, "internal": Internal, "agent": AgentTool},
    "conversation_stores": {"sqlite": Sqlite, "in_memory": Strict},
    "memory_strategies": {"sliding_window": Window, "summary": Summary},
    "semantic_stores": {"sqlite": Sqlite},
    "episodic_stores": {"sqlite": Sqlite},
    "guardrails": {
        "pii_detection": Pii,
        "topic_filter": Topics,
        "max_length": MaxLength,
        "careless": Careless,
    },
    "patterns": {
        "react": Strict,
        "plan_and_execute": Plan,
        "supervisor": Supervisor,
        "graph": GraphPattern,
        "reasoning": Reasoning,
        "autonomous": Strict,
    },
    "chunkers": {"markdown": Markdown},
    "vector_stores": {"sqlite": Sqlite},
    "channels": {"whatsapp": WhatsAppOptions},
    "durable_backends": {"in_process": Strict},
}


class FewPlugins:
    """An OptionsResolver over a table."""

    def names(self, group: str) -> Sequence[str]:
        return sorted(PLUGINS.get(group, {}))

    def options(self, group: str, name: str) -> type[BaseModel]:
        if name == "postgres":
            raise MissingExtra("conversation_stores plugin 'postgres' needs: pip install astromesh[postgres]")
        if name not in PLUGINS.get(group, {}):
            raise UnknownPlugin(f"There is no {group} plugin {name!r}.")
        return PLUGINS[group][name]


def file_of(kind: str, text: str, env: Mapping[str, str] | None = None, name: str = "x.yaml") -> ConfigFile:
    """A file from text, validated, nothing bound."""
    document = parse_text(text, Document(Path(name)), env or {})
    file = ConfigFile(kind, Path(name), document.node or Node({}, Place(1, 1)), document.faults)
    file.validate()
    return file


def told(file: ConfigFile) -> list[str]:
    return [str(found) for found in file.sorted_faults()]


#: the agent of api.md section 4, as far as the plugins here go
AGENT = """\
apiVersion: astromesh/v1
kind: Agent
metadata: {name: support-agent, version: "1.0.0", namespace: support, labels: {team: support}}
spec:
  identity: {display_name: "Support", description: "Answers questions about the product"}
  model:
    primary:   {provider: ollama, model: "llama3.1:8b", endpoint: "http://localhost:11434", timeout: 60,
                parameters: {temperature: 0.3, max_tokens: 1024}}
    fallback:  [{provider: openai, model: gpt-4o-mini, api_key_env: OPENAI_API_KEY}]   # one block or a list
    routing:   {strategy: cost_optimized}
    roles:     {planner: {primary: {provider: openai, model: gpt-4o}}}
  prompts:
    system: |
      You are {{ agent_name }}. {{ description }} Today is {{ current_date }}.
      {% for r in semantic_context %}- {{ r.content }}
      {% endfor %}
    variables: {product: "Astromesh"}
  orchestration: {pattern: react, max_iterations: 10, timeout_seconds: 120}
  tools:
    - {name: search_knowledge_base, type: rag, pipeline: product-knowledge, top_k: 5}
    - {name: create_ticket, type: webhook, endpoint: "https://tickets.example/new", method: POST,
       effect: external, idempotency: key, approval: required, timeout_seconds: 10,
       rate_limit: {max_calls: 5, window_seconds: 60},
       parameters: {type: object, required: [title], properties: {title: {type: string}}}}
    - {name: calendar, type: mcp, server: calendar, tools: ["list_*"], forward_identity: true}
    - {name: now, type: internal, function: "my_tools:now"}
    - {name: billing, type: agent, agent: billing-agent,
       context_transform: '{"customer": "{{ customer_id }}"}'}
  memory:
    conversational: {backend: sqlite, strategy: sliding_window, max_turns: 20, ttl: 2592000}
    semantic:       {backend: sqlite, embeddings: {provider: openai, model: text-embedding-3-small}, top_k: 5,
                     similarity_threshold: 0.75, auto_index: true, facts: rules}
    episodic:       {backend: sqlite, max_events: 20}
  guardrails:
    input:
      - {type: pii_detection, action: redact}
      - {type: topic_filter, forbidden_topics: [violence], action: block, message: "I can't help with that."}
      - {type: max_length, max_characters: 5000}
    output:
      - {type: pii_detection, action: redact}
  permissions: {tools: [search_knowledge_base, now]}
  budgets:
    {per_run: {tokens: 20000, cost_usd: 0.10, tool_calls: 20}, per_session: {}, per_principal_daily: {}}
  sessions: {concurrency: enqueue}
  stream: token
  schedules: [{cron: "0 8 * * 1-5", timezone: Europe/Madrid, query: "What is new?", session: news, jitter: 60,
               on_missed: skip}]
  callback: {url: "https://example.com/hook", events: [failed], headers: {x-key: k}}
"""

#: every other kind, as api.md section 4 has it
OTHERS: Mapping[str, tuple[str, str]] = {
    "ProviderConfig": (
        "providers.yaml",
        """\
apiVersion: astromesh/v1
kind: ProviderConfig
metadata: {name: providers}
spec:
  providers:
    openai: {type: openai, endpoint: "https://api.openai.com/v1", api_key_env: OPENAI_API_KEY,
             models: [gpt-4o-mini], quality: {gpt-4o-mini: 60},
             prices: {gpt-4o-mini: {input_per_million: 0.15, output_per_million: 0.60}}}
    ollama: {type: ollama, endpoint: "http://localhost:11434"}
  routing: {default_strategy: cost_optimized, circuit_breaker: {failure_threshold: 3, recovery_timeout: 60}}
""",
    ),
    "ChannelConfig": (
        "channels.yaml",
        """\
apiVersion: astromesh/v1
kind: ChannelConfig
metadata: {name: channels}
spec:
  channels:
    whatsapp: {verify_token: "${WHATSAPP_VERIFY_TOKEN}", access_token: "${WHATSAPP_ACCESS_TOKEN}",
               phone_number_id: "${WHATSAPP_PHONE_NUMBER_ID}", app_secret: "${WHATSAPP_APP_SECRET}",
               default_agent: support-agent, debounce_ms: 0, api_base: "https://graph.facebook.com/v23.0"}
""",
    ),
    "RAGPipeline": (
        "rag/product-knowledge.rag.yaml",
        """\
apiVersion: astromesh/v1
kind: RAGPipeline
metadata: {name: product-knowledge}
spec:
  sources: [{type: folder, path: ../knowledge, glob: "**/*.md"}]
  chunking: {strategy: markdown, max_tokens: 300, overlap: 40}
  embeddings: {provider: openai, model: text-embedding-3-small}
  store: {backend: sqlite}
  retrieval: {mode: lexical, top_k: 5}
""",
    ),
    "MCPConfig": (
        "mcp.yaml",
        """\
apiVersion: astromesh/v1
kind: MCPConfig
metadata: {name: mcp}
spec:
  servers:
    calendar:
      {transport: http, url: "https://calendar.example/mcp", forward_identity: true, timeout_seconds: 30}
    files:    {transport: stdio, command: npx, args: ["-y", "@modelcontextprotocol/server-filesystem", "."]}
""",
    ),
    "RuntimeConfig": (
        "runtime.yaml",
        """\
apiVersion: astromesh/v1
kind: RuntimeConfig
metadata: {name: runtime}
spec:
  api: {host: 127.0.0.1, port: 8000, max_body_bytes: 1048576, cors_origins: []}
  auth: {mode: none, jwt: {issuer: "", audience: "", jwks_url: "", secret_env: "", tenant_claim: tenant}}
  storage: {url: "sqlite:///.astromesh/astromesh.db"}
  redis: {url: ""}
  network: {allow_hosts: []}
  callbacks: {secret_env: ""}
  telemetry:
    {log_level: info, log_format: console, otlp_endpoint: "", sample_ratio: 1.0, capture_content: false}
  defaults: {orchestration: {pattern: react, max_iterations: 10}}
""",
    ),
    "Graph": (
        "graphs/flow.graph.yaml",
        """\
apiVersion: astromesh/v1
kind: Graph
metadata: {name: flow}
spec: {nodes: [{name: a}], edges: []}
""",
    ),
}

#: what the files above take from the environment
ENV = {
    "OPENAI_API_KEY": "sk-seeded-0123456789",
    "WHATSAPP_VERIFY_TOKEN": "verify-seeded",
    "WHATSAPP_ACCESS_TOKEN": "access-seeded",
    "WHATSAPP_PHONE_NUMBER_ID": "1234567890",
    "WHATSAPP_APP_SECRET": "app-seeded",
}

BILLING = AGENT.split("  tools:", maxsplit=1)[0].replace("support-agent", "billing-agent")


def write_good(folder: Path) -> Path:
    """A whole folder without a fault."""
    for name, text in OTHERS.values():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "agents").mkdir()
    (folder / "knowledge").mkdir()
    (folder / "agents" / "support.agent.yaml").write_text(AGENT)
    (folder / "agents" / "billing.agent.yaml").write_text(BILLING)
    return folder
