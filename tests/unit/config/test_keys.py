"""Every key of api.md section 4: accepted when right, refused at its place when wrong, and its default."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from astromesh.config.records import Secret
from tests.unit.config.samples import file_of, told

TOOL = ("spec", "tools", 0)
CHAT = ("spec", "memory", "conversational")
MEANING = ("spec", "memory", "semantic")
SCHEDULE = ("spec", "schedules", 0)
ENTRY = ("spec", "providers", "openai")
WHATSAPP = ("spec", "channels", "whatsapp")
SERVER = ("spec", "servers", "calendar")
OAUTH = (*SERVER, "oauth")
CROSS = ("spec", "retrieval", "cross_encoder")
RERANKER = ("spec", "retrieval", "reranker")
NOTHING = object()
SORRY = "Sorry, something went wrong here. Please try again later."

MODEL: dict[str, Any] = {"provider": "openai"}
#: the least file of each kind in which every block below stands
LEAST: dict[str, dict[str, Any]] = {
    "Agent": {
        "metadata": {"name": "a"},
        "spec": {
            "model": {"primary": MODEL, "roles": {"planner": {"primary": MODEL}}},
            "tools": [{"name": "t", "type": "webhook", "rate_limit": {"max_calls": 1}}],
            "memory": {
                "conversational": {"backend": "sqlite"},
                "semantic": {"backend": "sqlite", "embeddings": MODEL},
                "episodic": {"backend": "sqlite"},
            },
            "guardrails": {"input": [{"type": "x"}], "output": [{"type": "x"}]},
            "schedules": [{"cron": "0 8 * * *", "query": "q"}],
            "callback": {"url": "https://example.com/hook"},
        },
    },
    "ProviderConfig": {"spec": {"providers": {"openai": {"type": "openai", "prices": {"m": {}}}}}},
    "ChannelConfig": {"spec": {"channels": {"whatsapp": {"default_agent": "a"}}}},
    "RAGPipeline": {
        "spec": {
            "sources": [{"path": "docs"}],
            "embeddings": MODEL,
            "retrieval": {"reranker": {"primary": MODEL}, "cross_encoder": {"model": "m"}},
        }
    },
    "MCPConfig": {"spec": {"servers": {"calendar": {"transport": "http", "oauth": {}}}}},
    "RuntimeConfig": {"spec": {"api": {"rate_limit": {"max_calls": 1}}}},
    "Graph": {"metadata": {"name": "g"}, "spec": {}},
}


class Key(NamedTuple):
    """Args:
    right, wrong: values as in YAML.
    default: what the record holds where the key is absent; NOTHING where the key must be there.
    """

    kind: str
    steps: tuple[str | int, ...]
    right: Any
    wrong: Any
    default: Any


def model_keys(kind: str, at: tuple[str | int, ...]) -> list[Key]:
    return [
        Key(kind, (*at, "provider"), "ollama", 5, NOTHING),
        Key(kind, (*at, "model"), "gpt-4o", 4, ""),
        *endpoint_keys(kind, at),
    ]


def endpoint_keys(kind: str, at: tuple[str | int, ...]) -> list[Key]:
    return [
        Key(kind, (*at, "endpoint"), "http://localhost:1", True, ""),
        Key(kind, (*at, "api_key_env"), "KEY", 1, ""),
        Key(kind, (*at, "api_key_file"), "key.txt", [], ""),
        Key(kind, (*at, "api_key"), "sk-1", 1, None),
        Key(kind, (*at, "timeout"), 5, 0, 60.0),
        Key(kind, (*at, "timeout"), 0.5, "5", 60.0),
        Key(kind, (*at, "parameters"), {"temperature": 0.3}, [1], {}),
        Key(kind, (*at, "prices"), {"m": {"input_per_million": 1, "output_per_million": 2.5}}, {"m": 3}, {}),
        Key(kind, (*at, "quality"), {"m": 60}, {"m": "good"}, {}),
    ]


def head_keys(kind: str) -> list[Key]:
    return [
        Key(kind, ("apiVersion",), "astromesh/v1", "astromesh/v2", NOTHING),
        Key(kind, ("kind",), kind, "Agnt", NOTHING),
        Key(kind, ("metadata", "name"), "some-name", "a b", NOTHING if kind == "Agent" else ""),
        Key(kind, ("metadata", "version"), "1.0.0", 1.0, ""),
        Key(kind, ("metadata", "namespace"), "support", 1, ""),
        Key(kind, ("metadata", "labels"), {"team": "support"}, {"team": 1}, {}),
    ]


STRATEGIES = (
    "cost_optimized",
    "latency_optimized",
    "quality_first",
    "round_robin",
    "capability_match",
    "priority",
)

AGENT_KEYS = [
    Key("Agent", ("spec", "identity", "display_name"), "Support", 1, ""),
    Key("Agent", ("spec", "identity", "description"), "Answers", [], ""),
    Key("Agent", ("spec", "model"), {"primary": MODEL}, [], NOTHING),
    *model_keys("Agent", ("spec", "model", "primary")),
    *model_keys("Agent", ("spec", "model", "roles", "planner", "primary")),
    Key("Agent", ("spec", "model", "fallback"), MODEL, "openai", ()),
    Key("Agent", ("spec", "model", "fallback"), [MODEL, MODEL], [1], ()),
    *[
        Key("Agent", ("spec", "model", "routing", "strategy"), right, "cheapest", None)
        for right in STRATEGIES
    ],
    Key("Agent", ("spec", "model", "roles"), {"judge": {"primary": MODEL, "fallback": MODEL}}, [], {}),
    Key("Agent", ("spec", "prompts", "system"), "Hello {{ x }}", 1, ""),
    Key("Agent", ("spec", "prompts", "variables"), {"product": "x", "list": [1]}, [], {}),
    Key("Agent", ("spec", "orchestration", "pattern"), "pipeline", 1, "react"),
    Key("Agent", ("spec", "orchestration", "max_iterations"), 3, 0, None),
    Key("Agent", ("spec", "orchestration", "timeout_seconds"), 1.5, -1, None),
    Key("Agent", ("spec", "tools"), [], {}, ()),
    Key("Agent", (*TOOL, "name"), "create_ticket", "create ticket", NOTHING),
    Key("Agent", (*TOOL, "type"), "rag", 1, NOTHING),
    Key("Agent", (*TOOL, "description"), "Finds", 1, ""),
    *[Key("Agent", (*TOOL, "effect"), right, "delete", None) for right in ("read", "write", "external")],
    *[Key("Agent", (*TOOL, "idempotency"), right, True, "none") for right in ("none", "key")],
    *[Key("Agent", (*TOOL, "approval"), right, True, "none") for right in ("none", "required")],
    Key("Agent", (*TOOL, "timeout_seconds"), 10, "10", None),
    Key("Agent", (*TOOL, "rate_limit", "max_calls"), 5, 0, NOTHING),
    Key("Agent", (*TOOL, "trusted"), True, "yes", None),
    Key("Agent", (*TOOL, "rate_limit", "window_seconds"), 30, 0, 60.0),
    Key("Agent", (*TOOL, "parameters"), {"type": "object"}, "object", None),
    Key("Agent", (*TOOL, "max_calls_per_run"), 2, 0, None),
    Key("Agent", (*TOOL, "max_result_tokens"), 100, 0, None),
    Key("Agent", (*CHAT, "backend"), "in_memory", 1, NOTHING),
    Key("Agent", (*CHAT, "strategy"), "summary", 1, "sliding_window"),
    Key("Agent", (*CHAT, "ttl"), 2592000, 1.5, None),
    Key("Agent", (*MEANING, "backend"), "pgvector", 1, NOTHING),
    *model_keys("Agent", (*MEANING, "embeddings")),
    Key("Agent", (*MEANING, "top_k"), 3, 0, 5),
    Key("Agent", (*MEANING, "similarity_threshold"), 0.75, 1.5, 0.0),
    Key("Agent", (*MEANING, "auto_index"), True, "yes", False),
    *[Key("Agent", (*MEANING, "facts"), right, True, None) for right in ("rules", "model")],
    Key("Agent", ("spec", "memory", "episodic", "backend"), "postgres", 1, NOTHING),
    Key("Agent", ("spec", "memory", "episodic", "max_events"), 5, 0, 20),
    Key("Agent", ("spec", "guardrails", "input", 0, "type"), "max_length", 1, NOTHING),
    Key("Agent", ("spec", "guardrails", "output", 0, "type"), "cost_limit", None, NOTHING),
    Key("Agent", ("spec", "permissions", "tools"), ["now"], "now", None),
    Key("Agent", ("spec", "permissions", "tainted"), "approval", "deny", "allow"),
    *[
        key
        for budget in ("per_run", "per_session", "per_principal_daily")
        for key in (
            Key("Agent", ("spec", "budgets", budget, "tokens"), 20000, 0, None),
            Key("Agent", ("spec", "budgets", budget, "cost_usd"), 0.10, "0.10", None),
            Key("Agent", ("spec", "budgets", budget, "tool_calls"), 20, 1.5, None),
            Key("Agent", ("spec", "budgets", budget, "wall_seconds"), 60, 0, None),
        )
    ],
    *[
        Key("Agent", ("spec", "sessions", "concurrency"), right, "queue", "enqueue")
        for right in ("enqueue", "reject", "interrupt", "merge")
    ],
    Key("Agent", ("spec", "sessions", "queue_timeout_seconds"), 5, 0, 60.0),
    Key("Agent", ("spec", "sessions", "merge_window_ms"), 100, 0, 500),
    Key("Agent", ("spec", "queue", "priority"), -5, 5000, 0),
    Key("Agent", ("spec", "queue", "max_running"), 4, 0, None),
    Key("Agent", ("spec", "queue", "max_queued"), 100, 0, 10_000),
    Key("Agent", ("spec", "queue", "max_wait_seconds"), 30, 0, None),
    *[Key("Agent", ("spec", "stream"), right, "tokens", None) for right in ("token", "sentence", "final")],
    *[Key("Agent", ("spec", "on_disconnect"), right, "stop", None) for right in ("continue", "cancel")],
    Key("Agent", ("spec", "skills"), [], "skills", ()),
    *[Key("Agent", ("spec", "client_tools"), right, "ask", "allow") for right in ("allow", "deny")],
    Key("Agent", ("spec", "overridable"), ["model", "tools"], ["seed"], None),
    Key("Agent", ("spec", "recording"), True, "perhaps", None),
    Key("Agent", ("spec", "output_schema"), {"type": "object"}, "object", None),
    Key("Agent", ("spec", "callback", "url"), "https://example.com/hook", "ftp://example.com", NOTHING),
    Key(
        "Agent",
        ("spec", "callback", "events"),
        ["failed"],
        ["ended"],
        ("completed", "failed", "cancelled", "waiting"),
    ),
    Key("Agent", ("spec", "callback", "headers"), {"x-key": "k"}, {"webhook-id": "k"}, {}),
    Key("Agent", (*SCHEDULE, "cron"), "0 8 * * 1-5", 8, NOTHING),
    Key("Agent", (*SCHEDULE, "query"), "What is new?", "", NOTHING),
    Key("Agent", (*SCHEDULE, "timezone"), "Europe/Madrid", 1, "UTC"),
    Key("Agent", (*SCHEDULE, "session"), "news", 1, ""),
    Key("Agent", (*SCHEDULE, "jitter"), 60, -1, 0.0),
    *[Key("Agent", (*SCHEDULE, "on_missed"), right, "never", "once") for right in ("skip", "once", "all")],
]
OTHER_KEYS = [
    Key("ProviderConfig", (*ENTRY, "type"), "ollama", 1, NOTHING),
    *endpoint_keys("ProviderConfig", (*ENTRY,)),
    Key("ProviderConfig", (*ENTRY, "models"), ["a", "b"], "a", ()),
    Key("ProviderConfig", (*ENTRY, "prices", "m", "input_per_million"), 0.15, -1, 0.0),
    Key("ProviderConfig", (*ENTRY, "prices", "m", "output_per_million"), 0.6, "x", 0.0),
    Key("ProviderConfig", (*ENTRY, "prices", "m", "cached_per_million"), 0.01, -1, None),
    Key("ProviderConfig", (*ENTRY, "prices", "m", "cache_write_per_million"), 0.2, -1, None),
    *[
        Key("ProviderConfig", ("spec", "routing", "default_strategy"), right, "fast", "priority")
        for right in STRATEGIES
    ],
    Key("ProviderConfig", ("spec", "routing", "circuit_breaker", "failure_threshold"), 5, 0, 3),
    Key("ProviderConfig", ("spec", "routing", "circuit_breaker", "recovery_timeout"), 10, 0, 60.0),
    Key("ChannelConfig", (*WHATSAPP, "agents"), {"123": "sales"}, {"123": 5}, {}),
    Key("ChannelConfig", (*WHATSAPP, "tenant"), "acme", "", "default"),
    Key("ChannelConfig", (*WHATSAPP, "identity_key"), "key", 5, ""),
    Key("ChannelConfig", (*WHATSAPP, "lease_seconds"), 5, 0, 15.0),
    Key("ChannelConfig", (*WHATSAPP, "failure_reply"), "Sorry.", 5, SORRY),
    Key("ChannelConfig", (*WHATSAPP, "default_agent"), "whatsapp-assistant", "a b", NOTHING),
    Key("ChannelConfig", (*WHATSAPP, "debounce_ms"), 500, -1, 0),
    Key("RAGPipeline", ("spec", "sources", 0, "type"), "folder", "web", None),
    Key("RAGPipeline", ("spec", "sources", 0, "path"), "../knowledge", 1, ""),
    Key("RAGPipeline", ("spec", "sources", 0, "url"), "https://example.com/faq", "ftp://example.com", ""),
    Key("RAGPipeline", ("spec", "sources", 0, "every"), 60.0, "soon", 3600.0),
    Key("RAGPipeline", ("spec", "sources", 0, "glob"), "*.txt", 1, "**/*.md"),
    Key("RAGPipeline", ("spec", "chunking", "strategy"), "sentence", 1, "markdown"),
    *model_keys("RAGPipeline", ("spec", "embeddings")),
    Key("RAGPipeline", ("spec", "store", "backend"), "pgvector", 1, "sqlite"),
    *[
        Key("RAGPipeline", ("spec", "retrieval", "mode"), right, "bm25", None)
        for right in ("lexical", "vector", "hybrid")
    ],
    Key("RAGPipeline", ("spec", "retrieval", "top_k"), 3, 0, 5),
    Key("RAGPipeline", ("spec", "retrieval", "min_score"), 0.5, 2, 0.0),
    Key("RAGPipeline", ("spec", "sources", 0, "glob"), ["*.md", "*.pdf"], [""], "**/*.md"),
    Key("RAGPipeline", ("spec", "retrieval", "reranker"), {"primary": MODEL, "fallback": [MODEL]}, {}, None),
    Key("RAGPipeline", (*RERANKER, "candidates"), 30, 1, 20),
    Key("RAGPipeline", (*CROSS, "model"), "models/m", "", NOTHING),
    Key("RAGPipeline", (*CROSS, "candidates"), 30, 101, 20),
    Key("RAGPipeline", ("spec", "shared"), True, "maybe", False),
    Key("RAGPipeline", ("spec", "owner"), "acme", 5, ""),
    *model_keys("RAGPipeline", (*RERANKER, "primary")),
    *[Key("MCPConfig", (*SERVER, "transport"), right, "tcp", NOTHING) for right in ("http", "sse", "stdio")],
    Key("MCPConfig", (*SERVER, "url"), "https://x/mcp", 1, ""),
    Key("MCPConfig", (*SERVER, "headers"), {"x-key": "k"}, {"x-key": 1}, {}),
    Key("MCPConfig", (*SERVER, "env"), {"KEY": "k"}, ["KEY=k"], {}),
    Key("MCPConfig", (*SERVER, "cwd"), "files", 1, ""),
    Key("MCPConfig", (*SERVER, "command"), "npx", [], ""),
    Key("MCPConfig", (*SERVER, "args"), ["-y"], "-y", ()),
    Key("MCPConfig", (*SERVER, "forward_identity"), True, "on", False),
    Key("MCPConfig", (*SERVER, "timeout_seconds"), 5, 0, 30.0),
    Key("MCPConfig", (*SERVER, "oauth"), {}, True, None),
    Key("MCPConfig", (*OAUTH, "grant"), "client_credentials", "password", "authorization_code"),
    Key("MCPConfig", (*OAUTH, "client_id"), "astromesh", 1, ""),
    Key("MCPConfig", (*OAUTH, "client_secret"), "s", 1, ""),
    Key("MCPConfig", (*OAUTH, "auth_method"), "client_secret_post", "none", "client_secret_basic"),
    Key("MCPConfig", (*OAUTH, "client_metadata_url"), "https://x/client.json", 1, ""),
    Key("MCPConfig", (*OAUTH, "issuer"), "https://issuer", 1, ""),
    Key("MCPConfig", (*OAUTH, "scope"), "read write", ["read"], ""),
    Key("MCPConfig", (*OAUTH, "redirect_port"), 3000, 70000, 0),
    Key("RuntimeConfig", ("spec", "api", "host"), "0.0.0.0", 1, "127.0.0.1"),
    Key("RuntimeConfig", ("spec", "api", "port"), 80, 65536, 8000),
    Key("RuntimeConfig", ("spec", "api", "max_body_bytes"), 1000, 0, 1048576),
    Key("RuntimeConfig", ("spec", "api", "cors_origins"), ["https://x"], "*", ()),
    Key("RuntimeConfig", ("spec", "api", "max_requests"), 10, 0, 1_000),
    Key("RuntimeConfig", ("spec", "api", "max_sockets"), 10, 0, 10_000),
    Key("RuntimeConfig", ("spec", "api", "rate_limit"), {"max_calls": 5}, 5, None),
    Key("RuntimeConfig", ("spec", "api", "rate_limit", "max_calls"), 5, 0, NOTHING),
    Key("RuntimeConfig", ("spec", "api", "rate_limit", "window_seconds"), 10, 0, 60.0),
    *[
        Key("RuntimeConfig", ("spec", "auth", "mode"), right, "basic", "none")
        for right in ("none", "api_key", "jwt", "both")
    ],
    *[
        Key("RuntimeConfig", ("spec", "auth", "jwt", key), "x", 1, "")
        for key in ("issuer", "audience", "secret_env")
    ],
    Key("RuntimeConfig", ("spec", "auth", "jwt", "jwks_url"), "https://h/keys", "h/keys", ""),
    Key("RuntimeConfig", ("spec", "auth", "jwt", "tenant_claim"), "org", 1, "tenant"),
    Key(
        "RuntimeConfig",
        ("spec", "storage", "url"),
        "postgresql://u:p@h/d",
        1,
        "sqlite:///.astromesh/astromesh.db",
    ),
    Key("RuntimeConfig", ("spec", "storage", "listen_url"), "postgresql://u:p@h/d", "sqlite:///a.db", ""),
    Key("RuntimeConfig", ("spec", "storage", "keep_days"), 7, 0, 30.0),
    Key("RuntimeConfig", ("spec", "storage", "keep_runs"), 100, 0, 10_000),
    Key("RuntimeConfig", ("spec", "storage", "sqlite", "synchronous"), "normal", "off", "full"),
    Key("RuntimeConfig", ("spec", "redis", "url"), "redis://h", 1, ""),
    Key("RuntimeConfig", ("spec", "network", "allow_hosts"), ["10.0.0.1"], "10.0.0.1", ()),
    Key("RuntimeConfig", ("spec", "callbacks", "secret_env"), "CALLBACKS", "not a name", ""),
    Key("RuntimeConfig", ("spec", "durable", "backend"), "in_process", 1, "in_process"),
    *[
        Key("RuntimeConfig", ("spec", "telemetry", "log_level"), right, "loud", "info")
        for right in ("debug", "info", "warning", "error")
    ],
    *[
        Key("RuntimeConfig", ("spec", "telemetry", "log_format"), right, "xml", "console")
        for right in ("console", "json")
    ],
    Key("RuntimeConfig", ("spec", "telemetry", "otlp_endpoint"), "http://h:4318", 1, ""),
    Key("RuntimeConfig", ("spec", "telemetry", "sample_ratio"), 0.1, 1.1, 1.0),
    Key("RuntimeConfig", ("spec", "telemetry", "capture_content"), True, 1, False),
    Key("RuntimeConfig", ("spec", "recording", "enabled"), True, 1, False),
    Key("RuntimeConfig", ("spec", "recording", "retention_days"), 7, 0, 30.0),
    Key("RuntimeConfig", ("spec", "recording", "max_bytes"), 1000, 0, 4_194_304),
    Key("RuntimeConfig", ("spec", "console", "enabled"), False, 1, True),
    Key("RuntimeConfig", ("spec", "limits", "max_concurrent_runs"), 50, 0, 128),
    Key("RuntimeConfig", ("spec", "limits", "max_answer_bytes"), 1000, 0, 4_194_304),
    Key("RuntimeConfig", ("spec", "limits", "max_attachment_bytes"), 1000, 0, 10_000_000),
    Key("RuntimeConfig", ("spec", "defaults", "orchestration", "pattern"), "reasoning", 1, "react"),
    Key("RuntimeConfig", ("spec", "defaults", "orchestration", "max_iterations"), 3, 0, 10),
    Key("RuntimeConfig", ("spec", "defaults", "orchestration", "timeout_seconds"), 30, 0, 120.0),
    Key("Graph", ("spec",), {"nodes": [{"name": "a"}]}, [], NOTHING),
]
KEYS = [*(key for kind in LEAST for key in head_keys(kind)), *AGENT_KEYS, *OTHER_KEYS]
IDS = [f"{key.kind}.{'.'.join(map(str, key.steps))}={key.right}"[:90] for key in KEYS]


def data_of(kind: str) -> dict[str, Any]:
    head = {"apiVersion": "astromesh/v1", "kind": kind}
    least: dict[str, Any] = json.loads(json.dumps({**head, **LEAST[kind]}))
    return least


def text_with(key: Key, value: Any) -> str:
    """The least file with a key set, or without it."""
    data: Any = data_of(key.kind)
    whole = data
    for step in key.steps[:-1]:
        data = data[step] if isinstance(step, int) else data.setdefault(step, {})
    if value is NOTHING:
        data.pop(key.steps[-1], None)
    else:
        data[key.steps[-1]] = value
    return yaml.safe_dump(whole, sort_keys=False)


def value_at(record: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        record = record[step] if isinstance(step, int) or isinstance(record, dict) else getattr(record, step)
    if isinstance(record, dict):
        return {key: value_at(value, ()) for key, value in record.items()}
    return record.get_secret_value() if isinstance(record, Secret) else record


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.model_dump(mode="json", exclude_unset=True) if hasattr(value, "model_dump") else value


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_a_right_value_is_read_as_written(key: Key) -> None:
    file = file_of(key.kind, text_with(key, key.right))
    assert told(file) == []
    assert plain(value_at(file.manifest, key.steps)) == key.right


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_a_wrong_value_is_refused_at_its_place(key: Key) -> None:
    file = file_of(key.kind, text_with(key, key.wrong))
    dotted = ".".join(str(step) for step in key.steps).replace(".0", "[0]")
    assert file.faults
    for found in file.faults:
        assert found.key.startswith(dotted)
        assert found.line == file.root.place_of(key.steps).line > 0


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_an_absent_key_has_its_default_or_is_missed(key: Key) -> None:
    file = file_of(key.kind, text_with(key, NOTHING))
    if key.default is NOTHING:
        assert any("required key is missing" in line for line in told(file))
    else:
        assert told(file) == []
        assert value_at(file.manifest, key.steps) == key.default


@pytest.mark.parametrize("kind", LEAST)
def test_the_table_knows_every_key(kind: str) -> None:
    """A key that is added to a record must be added here."""
    known = {tuple(str(s) for s in key.steps) for key in KEYS if key.kind == kind}
    schema = _keys_of_schema(file_of(kind, yaml.safe_dump(data_of(kind))).manifest)
    missing = [
        path
        for path in schema
        if not any(one[: len(path)] == path or path[: len(one)] == one for one in known)
    ]
    assert missing == []


def test_the_documentation_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    missing = {str(key.steps[-1]) for key in KEYS if not re.search(rf"[`.]{key.steps[-1]}[`:]", page)}
    assert missing - {"0"} == set()


def _keys_of_schema(record: Any, at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = []
    for name in type(record).model_fields:
        value, path = getattr(record, name), (*at, name)
        if hasattr(type(value), "model_fields"):
            paths += _keys_of_schema(value, path)
        elif isinstance(value, tuple) and value and hasattr(type(value[0]), "model_fields"):
            paths += _keys_of_schema(value[0], (*path, "0"))
        elif isinstance(value, dict) and value and hasattr(type(next(iter(value.values()))), "model_fields"):
            key, first = next(iter(value.items()))
            paths += _keys_of_schema(first, (*path, key))
        else:
            paths.append(path)
    return paths
