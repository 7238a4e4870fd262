"""A server's answer to a call as what the model reads."""

from __future__ import annotations

from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from astromesh.errors import ToolFailed


def read(tool: str, result: CallToolResult) -> Any:
    """The text of an answer, else its structured content.

    Servers repeat structured content as text for those that cannot read it, so that text is enough.

    Raises:
        ToolFailed: the server says that the call failed.
    """
    text = "\n".join(part for block in result.content if (part := _text(block)))
    if result.is_error:
        raise ToolFailed(text or f"The tool {tool!r} failed and did not say why.")
    return result.structured_content if not text and result.structured_content is not None else text


def _text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent() | AudioContent():
            size = len(block.data) * 3 // 4 - block.data[-2:].count("=")
            return f"[{block.type}: {block.mime_type}, {size} bytes, not shown]"
        case ResourceLink():
            return f"[resource: {block.name} <{block.uri}>]"
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case EmbeddedResource(resource=other):
            return f"[resource: <{other.uri}>, {other.mime_type or 'binary'}, not shown]"
