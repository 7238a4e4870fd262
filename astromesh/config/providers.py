"""providers.yaml, kind ProviderConfig: named endpoints that agents refer to by `provider: NAME`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astromesh.config.fields import Count, Name, Record, Seconds
from astromesh.config.head import Manifest, Metadata
from astromesh.config.models import Endpoint

Strategy = Literal[
    "cost_optimized", "latency_optimized", "quality_first", "round_robin", "capability_match", "priority"
]


class ProviderEntry(Endpoint):
    """One endpoint with its models."""

    type: str = Field(min_length=1, description="Name of the provider plugin.")
    models: tuple[str, ...] = Field(
        (), description="Models it is used with; the first is the default, others get a warning."
    )


class CircuitBreaker(Record):
    failure_threshold: Count = Field(3, description="Failures in a row that open the circuit.")
    recovery_timeout: Seconds = Field(60.0, description="Seconds until an open circuit lets one call probe.")


class ProviderRouting(Record):
    default_strategy: Strategy = Field("priority", description="For agents that name no routing.strategy.")
    circuit_breaker: CircuitBreaker = CircuitBreaker.empty()


class ProviderSpec(Record):
    providers: dict[Name, ProviderEntry] = Field(default_factory=dict, description="Endpoints by name.")
    routing: ProviderRouting = ProviderRouting.empty()


class ProviderManifest(Manifest):
    kind: Literal["ProviderConfig"]
    metadata: Metadata = Metadata.empty()
    spec: ProviderSpec = ProviderSpec.empty()
