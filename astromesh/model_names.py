"""Models by name, `provider:name`: what arguments of agents and nodes write."""

from __future__ import annotations

import re
from collections.abc import Collection

from astromesh.errors import UnknownPlugin
from astromesh.text import did_you_mean

#: what names of models begin with -> their provider
_PROVIDERS = (
    (re.compile(r"gpt-|chatgpt|o[1-9]\b|text-embedding"), "openai"),
    (re.compile(r"claude"), "anthropic"),
    (re.compile(r"gemini|gemma-"), "gemini"),
    (re.compile(r"llama|mistral|qwen|phi|deepseek|gemma"), "ollama"),
)


def is_model_name(text: str, providers: Collection[str]) -> bool:
    """Whether a text is `provider:name` with one of these providers."""
    provider, colon, name = text.partition(":")
    return bool(colon and name) and provider in providers


def missing_provider(text: str) -> str:
    """Returns the sentence about a name of a model without its provider, or an empty text."""
    guess = next((owner for pattern, owner in _PROVIDERS if pattern.match(text)), "")
    if not guess or ":" in text:
        return ""
    return f"{text!r} does not say whose model it is. Write {f'{guess}:{text}'!r}."


def split_model_name(text: str, providers: Collection[str]) -> tuple[str, str]:
    """Returns the provider and the name of a model. A provider alone has an empty name.

    Args:
        providers: The known ones.

    Raises:
        UnknownPlugin: The text names none of them. The message says how to write it.
    """
    provider, _, name = text.partition(":")
    if provider in providers:
        return provider, name
    if hint := missing_provider(text):
        raise UnknownPlugin(hint)
    hint = did_you_mean(provider, providers) or f"Known: {', '.join(providers)}."
    raise UnknownPlugin(f"There is no provider {provider!r}. {hint} A model is written 'provider:name'.")
