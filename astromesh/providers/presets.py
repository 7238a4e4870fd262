"""Services that speak OpenAI's chat completions at an address of their own: a table, a plugin for each row.

A row is what a block of `type: openai` would have to say. Every key of `openai` may change it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import Field, create_model

from astromesh.providers.openai import OpenAI, OpenAIOptions


class Preset(NamedTuple):
    """One service.

    Args:
        name: The type in YAML.
        endpoint: Its address, to which the key is sent.
        variable: The usual environment variable of its key.
        structured: How it takes an output schema.
        stream_usage: Whether it accepts `stream_options`; without them it reports its tokens all the same.
    """

    name: str
    service: str
    endpoint: str
    variable: str
    structured: Literal["json_schema", "json_object"] = "json_schema"
    stream_usage: bool = True


PRESETS = (
    Preset("deepseek", "DeepSeek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", "json_object"),
    Preset("groq", "Groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    Preset("mistral", "Mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", stream_usage=False),
    Preset("openrouter", "OpenRouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
)


def _plugin(preset: Preset) -> type[OpenAI]:
    """Returns the plugin `openai` with the defaults of a service."""
    fields: dict[str, Any] = {
        name: (OpenAIOptions.model_fields[name].annotation, Field(default, description=_about(name)))
        for name, default in (
            ("structured_output", preset.structured), ("stream_usage", preset.stream_usage)
        )
    }  # fmt: skip
    options = create_model(f"{preset.service}Options", __base__=OpenAIOptions, **fields)
    options.usual_variable, options.usual_endpoints = preset.variable, (preset.endpoint,)
    own = {"Options": options, "kind": preset.name, "usual_endpoint": preset.endpoint}
    return type(preset.service, (OpenAI,), own)


def _about(field: str) -> str | None:
    return OpenAIOptions.model_fields[field].description


DeepSeek = _plugin(PRESETS[0])
Groq = _plugin(PRESETS[1])
Mistral = _plugin(PRESETS[2])
OpenRouter = _plugin(PRESETS[3])
