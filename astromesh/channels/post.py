"""One channel as it is set up: whose messages are whose, and how they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from astromesh.abc.channel import Address, Channel, Inbound, Kept, Kind, Letter, Prepared, Question, Taken
from astromesh.channels.sealing import Seal
from astromesh.types import CallerContext, JsonObject


@dataclass(frozen=True, slots=True)
class Setup:
    """What channels.yaml says of a channel, beside the channel's own keys.

    Args:
        agents: by our address; every other one is answered by `default_agent`.
        debounce: seconds that a person must be silent before an answer is begun.
        lease: seconds after which another process takes over what this one no longer works on.
    """

    default_agent: str
    agents: Mapping[str, str] = field(default_factory=dict)
    debounce: float = 0.0
    tenant: str = "default"
    identity_key: str = ""
    failure_reply: str = ""
    lease: float = 15.0


class Post:
    """A channel, its setup and its seal."""

    def __init__(self, name: str, channel: Channel, setup: Setup) -> None:
        self.name, self.channel, self.setup = name, channel, setup
        self.seal = Seal(setup.identity_key or channel.secret, name)
        self._ours = {*channel.addresses, *setup.agents} if channel.addresses else set[str]()

    def is_ours(self, address: Address) -> bool:
        return not self._ours or address.ours in self._ours

    # -- in ------------------------------------------------------------------------------------------------

    def letter(self, message: Inbound, now: float) -> Letter:
        """A message as it is kept: nothing in it can be read without the key."""
        address = message.address
        queue = self.seal.digest("queue", *address)
        content = {"id": message.id, "text": message.text, "kind": message.kind, "about": message.about}
        if message.traceparent:
            content["traceparent"] = message.traceparent
        return Letter(
            channel=self.name,
            id=self.seal.digest("message", message.id),
            queue=queue,
            tenant=self.setup.tenant,
            principal=f"{self.name}:{self.seal.digest('person', address.theirs)}",
            address=self.seal.seal({"ours": address.ours, "theirs": address.theirs}, queue),
            content=self.seal.seal(content, queue),
            now=now,
            due_at=now + (self.setup.debounce if message.kind == "message" else 0.0),
        )

    def address(self, taken: Taken) -> Address:
        """Raises: ConfigError: the key is another one."""
        return Address(**self.seal.unseal(taken.address, taken.queue))

    def message(self, kept: Kept, taken: Taken, address: Address) -> Inbound:
        """Raises: ConfigError: the key is another one."""
        content = self.seal.unseal(kept.content, taken.queue)
        kind: Kind = content["kind"]
        trace = content.get("traceparent", "")
        return Inbound(content["id"], address, content["text"], kind, content["about"], trace)

    def reply(self, sealed: bytes, taken: Taken) -> tuple[str, ...]:
        return tuple(self.seal.unseal(sealed, taken.queue)["parts"])

    # -- the run -------------------------------------------------------------------------------------------

    def question(
        self, taken: Taken, address: Address, key: str, prepared: list[Prepared], traceparent: str = ""
    ) -> Question:
        """Several messages are one question: texts by newline, pictures in order."""
        agent = self.setup.agents.get(address.ours, self.setup.default_agent)
        caller = CallerContext(
            user_id=taken.principal,
            tenant_id=taken.tenant,
            scopes=frozenset({f"agents:run:{agent}"}),
            metadata={"channel": self.name},
        )
        return Question(
            agent=agent,
            query="\n".join(one.text for one in prepared),
            session_id=f"{self.name}:{taken.queue}",
            caller=caller,
            key=key,
            context=_context(self.name, [one.about for one in prepared]),
            metadata={"channel": self.name, "message": key},
            images=tuple(image for one in prepared for image in one.images),
            traceparent=traceparent,
        )


def _context(channel: str, messages: list[JsonObject]) -> dict[str, Any]:
    names = [about["profile_name"] for about in messages if about.get("profile_name")]
    return {"channel": channel, "profile_name": names[-1] if names else "", "messages": messages}
