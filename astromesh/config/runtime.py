"""runtime.yaml, kind RuntimeConfig: the server and its defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.addresses import AllowedHost, HttpUrl, ListenHost, Origin, RedisUrl, StoreUrl
from astromesh.config.environment import VariableName
from astromesh.config.fields import Count, Ratio, Record, Seconds, Secret
from astromesh.config.head import Manifest, Metadata

Port = Annotated[int, Field(ge=0, le=65535)]


class CallRate(Record):
    max_calls: Count = Field(description="Calls of one principal within the window.")
    window_seconds: Seconds = Field(60.0, description="Length of the window.")


class Api(Record):
    host: ListenHost = Field(
        "127.0.0.1", min_length=1, description="Address to listen on; another one needs auth."
    )
    port: Port = Field(8000, description="Port to listen on; 0: any free one.")
    max_body_bytes: Count = Field(1_048_576, description="Largest request body in bytes.")
    cors_origins: tuple[Origin, ...] = Field(
        (), description="Browser origins that may call; none by default."
    )
    max_requests: Count = Field(1_000, description="Requests at once in one process; more are 503.")
    max_sockets: Count = Field(10_000, description="WebSockets at once in one process; more are 503.")
    rate_limit: CallRate | None = Field(None, description="Calls and runs of each principal; absent: any.")


class Jwt(Record):
    issuer: str = Field("", description="Required `iss`.")
    audience: str = Field("", description="Required `aud`.")
    jwks_url: HttpUrl = Field("", description="Where the public keys are (RS256, ES256).")
    secret_env: VariableName = Field("", description="Environment variable with the shared secret (HS256).")
    tenant_claim: str = Field("tenant", min_length=1, description="Claim that names the tenant.")


class Auth(Record):
    mode: Literal["none", "api_key", "jwt", "both"] = Field(
        "none", description="How callers prove who they are."
    )
    jwt: Jwt = Jwt.empty()


class Storage(Record):
    url: StoreUrl = Field(
        Secret("sqlite:///.astromesh/astromesh.db"),
        description="sqlite:///PATH or postgresql://…; may hold a password.",
    )
    keep_days: float = Field(30.0, gt=0, description="Days that ended runs and their events are kept.")
    keep_runs: int = Field(10_000, ge=1, description="Ended runs that are kept at most; the oldest go first.")


class Redis(Record):
    url: RedisUrl = Field(Secret(""), description="redis://…; empty: none. May hold a password.")


class Network(Record):
    allow_hosts: tuple[AllowedHost, ...] = Field((), description="Private hosts that tools may call.")


class Telemetry(Record):
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Literal["console", "json"] = Field("console", description="For people or for machines.")
    otlp_endpoint: HttpUrl = Field("", description="OTLP over HTTP; empty: no export.")
    sample_ratio: Ratio = Field(
        1.0,
        description="Share of traces that is exported; of a caller's own trace the caller decides.",
    )
    capture_content: bool = Field(
        False, description="Whether traces hold what was said to models and tools, as the guardrails left it."
    )


class OrchestrationDefaults(Record):
    pattern: str = Field("react", min_length=1, description="For agents that name no pattern.")
    max_iterations: Count = Field(10, description="For agents that name none; graph and autonomous have 50.")
    timeout_seconds: Seconds = Field(120.0, description="For agents that name none.")


class Defaults(Record):
    orchestration: OrchestrationDefaults = OrchestrationDefaults.empty()


class RuntimeSpec(Record):
    api: Api = Api.empty()
    auth: Auth = Auth.empty()
    storage: Storage = Storage.empty()
    redis: Redis = Redis.empty()
    network: Network = Network.empty()
    telemetry: Telemetry = Telemetry.empty()
    defaults: Defaults = Defaults.empty()


class RuntimeManifest(Manifest):
    kind: Literal["RuntimeConfig"]
    metadata: Metadata = Metadata.empty()
    spec: RuntimeSpec = RuntimeSpec.empty()
