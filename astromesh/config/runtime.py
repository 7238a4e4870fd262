"""runtime.yaml, channels.yaml and mcp.yaml: the server, its messengers and its MCP servers.

Each check of a host, an origin or a URL returns its text, or raises ValueError with what is wrong and what to
write. URLs may contain passwords, which no message repeats.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import AfterValidator, Field

from astromesh.config.environment import VariableName
from astromesh.config.records import (
    Block,
    Count,
    Manifest,
    Metadata,
    Name,
    NamesPlugin,
    RateLimit,
    Ratio,
    Record,
    Seconds,
    Secret,
)

_HOST_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?|[\w](?:[\w-]{0,61}[\w])?"
_HOST_NAME = re.compile(rf"(?:{_HOST_LABEL})(?:\.(?:{_HOST_LABEL}))*\.?")
_ONLY_DIGITS = re.compile(r"[\d.]+")
_PORT = re.compile(r"(.+):\d+")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_SQLITE_PREFIX = "sqlite:///"
_STORE_SCHEMES = ("sqlite", "postgresql", "postgres")
_REDIS_SCHEMES = ("redis", "rediss", "unix")


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_host_name(text: str) -> bool:
    """Returns whether a text is a valid host name; numbers with dots are not."""
    return bool(_HOST_NAME.fullmatch(text)) and not _ONLY_DIGITS.fullmatch(text)


def listen_host(text: str) -> str:
    """Checks an address to listen on: a name or an IP address."""
    if _is_address(text) or _is_host_name(text):
        return text
    if not text:
        raise ValueError("must not be empty")
    if "://" in text:
        raise ValueError("is a URL; write only the host, e.g. localhost")
    if text.startswith("[") and text.endswith("]"):
        raise ValueError("is an address in brackets; write it without brackets")
    if (port := _PORT.fullmatch(text)) and (_is_address(port[1].strip("[]")) or _is_host_name(port[1])):
        raise ValueError("contains a port; write only the host, e.g. localhost")
    raise ValueError("is neither a host name nor an IP address")


def allowed_host(text: str) -> str:
    """Checks an entry of `network.allow_hosts`: a name, `*.suffix`, an address or a network."""
    entry = text.strip().lower().rstrip(".")
    if "://" not in entry and "/" in entry:
        _network(entry)
    elif entry.startswith("*."):
        if not _is_host_name(entry[2:]):
            raise ValueError("must have a name after '*.', e.g. *.corp.local")
    elif "*" in entry:
        raise ValueError("may contain '*' only at the start and before a dot, e.g. *.corp.local")
    elif "%" in entry:
        raise ValueError("is not a host name, *.suffix, address or network, e.g. wiki.local or 10.1.0.0/16")
    elif not _is_address(entry.strip("[]")):
        listen_host(entry)
    return text


def _network(entry: str) -> None:
    try:
        network = ip_network(entry, strict=False)
    except ValueError:
        raise ValueError("is not a network; write ADDRESS/BITS, e.g. 10.1.0.0/16") from None
    if network.network_address != ip_address(entry.partition("/")[0]):
        raise ValueError(f"is an address inside a network; write {network}, or only the address")


def cors_origin(text: str) -> str:
    """Checks an entry of `api.cors_origins`, as browsers send it: `https://app.example.com`, or `*`."""
    if text in ("*", "null"):
        return text
    parts = _split_url(text, "must be an origin, e.g. https://app.example.com")
    if not (parts.scheme and _SCHEME.fullmatch(parts.scheme) and parts.hostname):
        raise ValueError("must be an origin, e.g. https://app.example.com")
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    port = f":{parts.port}" if parts.port not in (None, usual) else ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if text != (sent := f"{parts.scheme}://{host}{port}"):
        raise ValueError(f"is not the form that browsers send; write {sent}")
    return text


def http_url(text: str) -> str:
    """Checks an HTTP URL, which may be empty."""
    if not text:
        return text
    parts = _split_url(text, "must be a URL http://… or https://…")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL http://… or https://…")
    return text


def store_url(url: Secret) -> Secret:
    """Checks `sqlite:///PATH` or `postgresql://…`, which may be empty."""
    text = url.get_secret_value()
    if not text:
        return url
    parts = _split_url(text, "must be a URL sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    if parts.scheme not in _STORE_SCHEMES:
        raise ValueError("must be a URL sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    if parts.scheme == "sqlite":
        if not text.startswith(_SQLITE_PREFIX) or text == _SQLITE_PREFIX:
            raise ValueError("must have three slashes and a path, e.g. sqlite:///.astromesh/astromesh.db")
        return url
    if not parts.path.strip("/"):
        raise ValueError("names no database; write postgresql://USER@HOST/DATABASE")
    if "@" in parts.path:  # a rest of the password, which messages about the database would repeat
        raise ValueError("must have one @ before the host; in a password write / @ as %2F %40")
    query = dict(parse_qsl(parts.query))
    for key, least in (("pool_size", 1), ("statement_cache", 0)):
        if key in query and not (query[key].isdecimal() and int(query[key]) >= least):
            raise ValueError(f"must have a whole number of at least {least} as {key}")
    return url


def postgres_url(url: Secret) -> Secret:
    """Checks `postgresql://…`, which may be empty."""
    if _split_url(url.get_secret_value(), "must be a URL postgresql://USER@HOST/DATABASE").scheme == "sqlite":
        raise ValueError("must be a URL postgresql://USER@HOST/DATABASE")
    return store_url(url)


def redis_url(url: Secret) -> Secret:
    """Checks `redis://HOST:PORT/NUMBER`, `rediss://…` or `unix://PATH`, which may be empty."""
    text = url.get_secret_value()
    if not text:
        return url
    parts = _split_url(text, "must be a URL redis://HOST:PORT/NUMBER")
    if parts.scheme not in _REDIS_SCHEMES:
        raise ValueError("must be a URL redis://HOST:PORT/NUMBER, rediss://… or unix://PATH")
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise ValueError("must have a path, e.g. unix:///run/redis.sock")
    elif (number := parts.path.strip("/")) and not number.isdecimal():
        raise ValueError("must name its database by a number, e.g. redis://localhost:6379/0")
    return url


def _split_url(text: str, otherwise: str) -> SplitResult:
    """Splits a URL. The library's own errors are not passed on, because they repeat the password."""
    if text != text.strip() or any(sign in text for sign in "\t\r\n"):
        raise ValueError("contains line breaks, tabs, or blanks around it")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(otherwise) from None
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(
            "must have a port of at most 65535; in a password write / ? # as %2F %3F %23"
        ) from None
    return parts


ListenHost = Annotated[str, AfterValidator(listen_host)]
AllowedHost = Annotated[str, AfterValidator(allowed_host)]
Origin = Annotated[str, AfterValidator(cors_origin)]
HttpUrl = Annotated[str, AfterValidator(http_url)]
ListenUrl = Annotated[Secret, AfterValidator(postgres_url)]
StoreUrl = Annotated[Secret, AfterValidator(store_url)]
RedisUrl = Annotated[Secret, AfterValidator(redis_url)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Api(Record):
    host: ListenHost = Field(
        "127.0.0.1", min_length=1, description="Address to listen on; a public one needs auth."
    )
    port: Port = Field(8000, description="Port to listen on; 0: any free one.")
    max_body_bytes: Count = Field(1_048_576, description="Largest request body in bytes.")
    cors_origins: tuple[Origin, ...] = Field(
        (), description="Browser origins that may call; none by default."
    )
    max_requests: Count = Field(1_000, description="Requests at once in one process; more get 503.")
    max_sockets: Count = Field(10_000, description="WebSockets at once in one process; more get 503.")
    rate_limit: RateLimit | None = Field(
        None, description="Calls and runs of each principal; absent: no limit."
    )


class Jwt(Record):
    issuer: str = Field("", description="Required `iss`.")
    audience: str = Field("", description="Required `aud`.")
    jwks_url: HttpUrl = Field("", description="Where the public keys are (RS256, ES256).")
    secret_env: VariableName = Field("", description="Environment variable with the shared secret (HS256).")
    tenant_claim: str = Field("tenant", min_length=1, description="Claim that names the tenant.")


class Auth(Record):
    mode: Literal["none", "api_key", "jwt", "both"] = Field("none", description="How callers authenticate.")
    jwt: Jwt = Jwt.empty()


class Sqlite(Record):
    synchronous: Literal["full", "normal"] = Field(
        "full",
        description="full: promises are synced to the disk first. normal: a loss of power may undo them.",
    )


class Storage(Record):
    url: StoreUrl = Field(
        Secret("sqlite:///.astromesh/astromesh.db"),
        description="sqlite:///PATH or postgresql://…; may contain a password.",
    )
    listen_url: ListenUrl = Field(
        Secret(""),
        description="postgresql://… beside a pooler, for notifications; empty: storage.url. "
        "May contain a password.",
    )
    keep_days: float = Field(30.0, gt=0, description="Days that ended runs and their events are stored.")
    keep_runs: int = Field(
        10_000, ge=1, description="Maximum of stored ended runs; the oldest are deleted first."
    )
    sqlite: Sqlite = Sqlite.empty()


class Redis(Record):
    url: RedisUrl = Field(Secret(""), description="redis://…; empty: none. May contain a password.")


class Network(Record):
    allow_hosts: tuple[AllowedHost, ...] = Field((), description="Private hosts that tools may call.")


class Durable(Block):
    """Other keys belong to the backend."""

    backend: Annotated[str, NamesPlugin("durable_backends")] = Field(
        "in_process", min_length=1, description="What decides where and when durable runs begin."
    )


class Callbacks(Record):
    secret_env: VariableName = Field(
        "",
        description="Variable with the secret that signs callbacks, `whsec_…`; empty: there are none.",
    )


class Telemetry(Record):
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum level that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        "console", description="console: for people; json: for machines."
    )
    otlp_endpoint: HttpUrl = Field("", description="OTLP over HTTP; empty: no export.")
    sample_ratio: Ratio = Field(
        1.0,
        description="Share of traces that is exported; in a caller's trace its sampled flag decides.",
    )
    capture_content: bool = Field(
        False, description="Whether traces contain requests to models and tools, after the guardrails."
    )


class Recording(Record):
    enabled: bool = Field(False, description="Whether plain runs are recorded; durable ones always are.")
    retention_days: float = Field(
        30.0, gt=0, description="Days that the steps of ended runs are stored, if the runs are."
    )
    max_bytes: Count = Field(
        4_194_304, description="Maximum bytes of the steps of a plain run; a longer run has no recording."
    )


class OrchestrationDefaults(Record):
    pattern: str = Field("react", min_length=1, description="For agents that name no pattern.")
    max_iterations: Count = Field(10, description="For agents that set none; 50 for graph and autonomous.")
    timeout_seconds: Seconds = Field(120.0, description="For agents that set none.")


class Defaults(Record):
    orchestration: OrchestrationDefaults = OrchestrationDefaults.empty()


class Console(Record):
    enabled: bool = Field(True, description="Serve the web console at /console/.")


class Limits(Record):
    max_concurrent_runs: Count = Field(
        128, description="Durable runs at once in one process; more wait for any process with room."
    )
    max_answer_bytes: Count = Field(
        4_194_304, description="Maximum bytes of the text of an answer; a longer one is an error."
    )
    max_attachment_bytes: Count = Field(
        10_000_000, description="Maximum bytes of an image, an audio file or a document of a message."
    )


class RuntimeSpec(Record):
    api: Api = Api.empty()
    auth: Auth = Auth.empty()
    storage: Storage = Storage.empty()
    redis: Redis = Redis.empty()
    network: Network = Network.empty()
    callbacks: Callbacks = Callbacks.empty()
    durable: Durable = Durable.empty()
    limits: Limits = Limits.empty()
    telemetry: Telemetry = Telemetry.empty()
    recording: Recording = Recording.empty()
    console: Console = Console.empty()
    defaults: Defaults = Defaults.empty()


class RuntimeManifest(Manifest):
    kind: Literal["RuntimeConfig"]
    metadata: Metadata = Metadata.empty()
    spec: RuntimeSpec = RuntimeSpec.empty()


# -- channels.yaml, kind ChannelConfig -----------------------------------------------------------------------


class ChannelBlock(Block):
    """A channel by its name; the other keys are the channel's own."""

    default_agent: Name = Field(description="The agent that answers.")
    agents: dict[str, Name] = Field({}, description="Other agents, by the address that received the message.")
    debounce_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        0, description="Messages of one sender within this time are combined."
    )
    tenant: str = Field("default", min_length=1, description="Tenant of the senders.")
    identity_key: Secret = Field(
        Secret(""), description="Key of the senders' pseudonyms; absent: derived from the channel's secret."
    )
    failure_reply: str = Field(
        "Sorry, something went wrong here. Please try again later.",
        description="Reply after a failure; empty: no reply.",
    )
    lease_seconds: Seconds = Field(
        15.0, description="Seconds after which another process takes over from one that died."
    )


class ChannelSpec(Record):
    channels: dict[Name, ChannelBlock] = Field({}, description="Channels by name, e.g. whatsapp.")


class ChannelManifest(Manifest):
    kind: Literal["ChannelConfig"]
    metadata: Metadata = Metadata.empty()
    spec: ChannelSpec = ChannelSpec.empty()


# -- mcp.yaml ------------------------------------------------------------------------------------------------


class MCPOAuth(Record):
    """How the client gets tokens for a server; `{}` is enough where the server lets clients register."""

    grant: Literal["authorization_code", "client_credentials"] = Field(
        "authorization_code",
        description="authorization_code: `astromesh mcp login` is needed; client_credentials: it is not.",
    )
    client_id: str = Field("", description="Id of a client that is registered; absent: it registers itself.")
    client_secret: Secret = Field(Secret(""), description="Secret of the client.")
    auth_method: Literal["client_secret_basic", "client_secret_post"] = Field(
        "client_secret_basic", description="How the client sends its secret."
    )
    client_metadata_url: str = Field(
        "", description="https URL of the client's metadata document, its id where servers support that."
    )
    issuer: str = Field("", description="The authorization server; only it receives `client_secret`.")
    scope: str = Field("", description="Scopes to request beside those that the server names, with spaces.")
    redirect_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port of this machine that a login returns to; 0: any."
    )


class MCPServer(Record):
    """One server: `url` and `headers` for http and sse; `command`, `args`, `env` and `cwd` for stdio."""

    transport: Literal["http", "sse", "stdio"] = Field(
        description="http: streamable HTTP; sse: the older HTTP transport; stdio: a child process."
    )
    url: str = Field("", description="Address of a server over http or sse.")
    headers: dict[str, Secret] = Field(
        default_factory=dict, description="Headers of every request (http, sse); their values are secret."
    )
    command: str = Field("", description="Program of a server over stdio.")
    args: tuple[str, ...] = Field((), description="The program's arguments.")
    env: dict[str, Secret] = Field(
        default_factory=dict,
        description="Environment variables added to PATH, HOME and similar ones; their values are secret.",
    )
    cwd: str = Field(
        "",
        description="Working directory, relative to the configuration; absent: that of astromesh.",
    )
    forward_identity: bool = Field(False, description="Send the caller's token with each call (http, sse).")
    timeout_seconds: Seconds = Field(30.0, description="Seconds one call may take.")
    oauth: MCPOAuth | None = Field(None, description="OAuth: how the client gets tokens (http).")


class MCPSpec(Record):
    servers: dict[Name, MCPServer] = Field(default_factory=dict, description="Servers by name.")


class MCPManifest(Manifest):
    kind: Literal["MCPConfig"]
    metadata: Metadata = Metadata.empty()
    spec: MCPSpec = MCPSpec.empty()
