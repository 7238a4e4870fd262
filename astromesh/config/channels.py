"""channels.yaml, kind ChannelConfig."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astromesh.config.fields import Name, Record, Secret
from astromesh.config.head import Manifest, Metadata


class WhatsApp(Record):
    """The WhatsApp Business Cloud API."""

    verify_token: Secret = Field(description="Token of the webhook's verification.")
    access_token: Secret = Field(description="Sent as Bearer with every message.")
    phone_number_id: str = Field(min_length=1, description="The business phone number's id, in quotes.")
    app_secret: Secret = Field(description="Key of the webhook's signature.")
    default_agent: Name = Field(description="The agent that answers.")
    debounce_ms: Annotated[int, Field(ge=0)] = Field(
        0, description="Messages of one sender within this time are one."
    )
    api_base: str = Field("https://graph.facebook.com/v23.0", min_length=1, description="The Graph API.")


class Channels(Record):
    whatsapp: WhatsApp | None = Field(None, description="WhatsApp Business Cloud API.")


class ChannelSpec(Record):
    channels: Channels = Channels()


class ChannelManifest(Manifest):
    kind: Literal["ChannelConfig"]
    metadata: Metadata = Metadata()
    spec: ChannelSpec = ChannelSpec()
