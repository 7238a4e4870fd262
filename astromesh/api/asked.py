"""What the body of a request for a run holds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from astromesh.unseen import CONTROL, blank

#: a text of one line
PLAIN = f"^[^{CONTROL}]+$"
SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PLAIN)]
#: positions in logs and histories are 64-bit integers in every store
MOST_SEQ = 2**63 - 1


def _not_blank(query: str) -> str:
    if blank(query):
        raise PydanticCustomError("blank", "it must not be blank")
    return query


Query = Annotated[
    str, StringConstraints(min_length=1, max_length=100_000, pattern=r"\S"), AfterValidator(_not_blank)
]


class RunBody(BaseModel):
    """One message to an agent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: Query = Field(description="The user's message.", examples=["How do I reset my password?"])
    session_id: SessionId = Field(description="Names the conversation.", examples=["session-42"])
    context: dict[str, Any] = Field(default_factory=dict, description="Variables for the prompt template.")
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Kept with the run, never shown to the model."
    )
