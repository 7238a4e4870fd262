"""channels.yaml, kind ChannelConfig."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.fields import Block, Name, Record, Seconds, Secret
from astromesh.config.head import Manifest, Metadata


class ChannelBlock(Block):
    """A channel by its name; the other keys are the channel's own."""

    default_agent: Name = Field(description="The agent that answers.")
    agents: dict[str, Name] = Field({}, description="Other agents, by our address that was written to.")
    debounce_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        0, description="Messages of one sender within this time are one."
    )
    tenant: str = Field("default", min_length=1, description="Tenant that the people who write belong to.")
    identity_key: Secret = Field(
        Secret(""), description="Key of people's pseudonyms; absent: derived from the channel's own secret."
    )
    failure_reply: str = Field(
        "Sorry, something went wrong here. Please try again later.",
        description="Answer where the agent has none; empty for none.",
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
