"""A model service inside the test's process that speaks the wire formats, as a script says.

One scenario, told in the words of OpenAI (also at Azure's address, and as responses), Anthropic, Ollama,
Gemini (also at Vertex's address) and Bedrock. The official SDKs are held against it too
(`tests/contract/providers/test_provider.py`), so that it cannot drift into formats of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.platform import aws

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: Json


@dataclass(frozen=True)
class Scenario:
    """What the model does.

    Args:
        pieces: the text as it is streamed.
        usage: input tokens (cached ones among them), output tokens, cached tokens.
        status, headers, error: of an answer that is a failure.
        raw: answered instead of the format, as whole body or as the stream's second event.
        after: events of a stream that leave before `then` happens.
        then: `cut` the connection, fall `silent`, send the `raw` bytes, or an `error` event.
        length: answered as too long.
        thought: what the model has thought, or signed, before its tool calls.
    """

    pieces: tuple[str, ...] = ("Hello", ", ", "world", ".")
    calls: tuple[Call, ...] = ()
    usage: tuple[int, int, int] | None = (12, 4, 8)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = "asked to fail"
    raw: bytes = b""
    after: int = 1000
    then: str = ""
    length: bool = False
    thought: str = ""


@dataclass(frozen=True)
class Seen:
    """A request in neutral words."""

    model: str
    system: str
    turns: tuple[tuple[str, str], ...]
    calls: tuple[tuple[str, Json], ...]
    results: tuple[str, ...]
    images: int
    tools: tuple[str, ...]
    schema: Json | None
    key: str
    body: Json
    files: int = 0


class OpenAISpeaker:
    path = "/v1/chat/completions"
    kind = "text/event-stream"

    def whole(self, s: Scenario) -> Json:
        message: Json = {"role": "assistant", "content": "".join(s.pieces) or None}
        if s.calls:
            message["tool_calls"] = [self._call(c, json.dumps(c.arguments)) for c in s.calls]
        if s.thought:
            message["reasoning_content"] = s.thought
        choice = {"index": 0, "message": message, "finish_reason": self._finish(s)}
        answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return answer | ({"usage": self._usage(s)} if s.usage else {})

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        chunks = [self._chunk({"role": "assistant", "content": ""})]
        chunks += [self._chunk({"content": piece}) for piece in s.pieces]
        for index, call in enumerate(s.calls):
            text = json.dumps(call.arguments)
            chunks.append(self._chunk({"tool_calls": [{"index": index, **self._call(call, "")}]}))
            for part in (text[:3], text[3:]):
                chunks.append(
                    self._chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
                )
        chunks.append(self._chunk({}, self._finish(s)))
        if s.usage and (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**self._chunk({}), "choices": [], "usage": self._usage(s)})
        return [b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks] + [b"data: [DONE]\n\n"]

    def failure(self, s: Scenario) -> Json:
        return {"error": {"message": s.error, "type": "server_error", "code": None}}

    def error_event(self, s: Scenario) -> bytes:
        return b"data: " + json.dumps({"error": {"message": s.error, "code": 503}}).encode() + b"\n\n"

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        messages = body["messages"]
        said = [m for m in messages if m["role"] in ("user", "assistant")]
        parts = [p for m in said if isinstance(m["content"], list) for p in m["content"]]
        return Seen(
            model=body["model"],
            system="\n\n".join(m["content"] for m in messages if m["role"] == "system"),
            turns=tuple((m["role"], text) for m in said if (text := _text(m["content"]))),
            calls=tuple(
                (c["function"]["name"], json.loads(c["function"]["arguments"]))
                for m in said
                for c in m.get("tool_calls") or ()
            ),
            results=tuple(m["content"] for m in messages if m["role"] == "tool" and m["tool_call_id"]),
            images=sum(p["type"] == "image_url" and bool(p["image_url"]["url"]) for p in parts),
            files=sum(p["type"] == "file" and bool(p["file"]["file_data"]) for p in parts),
            tools=tuple(t["function"]["name"] for t in body.get("tools") or ()),
            schema=body["response_format"]["json_schema"]["schema"] if "response_format" in body else None,
            key=headers.get("authorization", "").removeprefix("Bearer "),
            body=body,
        )

    def _call(self, call: Call, arguments: str) -> Json:
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _chunk(self, delta: Json, reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    def _usage(self, s: Scenario) -> Json:
        inputs, outputs, cached = s.usage or (0, 0, 0)
        return {
            "prompt_tokens": inputs,
            "completion_tokens": outputs,
            "total_tokens": inputs + outputs,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _finish(self, s: Scenario) -> str:
        return "length" if s.length else "tool_calls" if s.calls else "stop"


class AnthropicSpeaker:
    path = "/v1/messages"
    kind = "text/event-stream"

    def whole(self, s: Scenario) -> Json:
        signed = {"type": "thinking", "thinking": "Hm.", "signature": s.thought}
        blocks: list[Json] = [signed] if s.thought else []
        blocks += [{"type": "text", "text": "".join(s.pieces)}] if s.pieces else []
        blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in s.calls]
        counts = {"usage": self._usage(s)} if s.usage else {}
        return {**self._head(s), "content": blocks, "stop_reason": self._finish(s), **counts}

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        start: Json = {**self._head(s), "content": [], "stop_reason": None}
        if s.usage:
            start["usage"] = self._usage(s) | {"output_tokens": 1}
        events: list[Json] = [{"type": "message_start", "message": start}, {"type": "ping"}]
        if s.pieces:
            events.append(
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
            )
            events += [self._delta(0, {"type": "text_delta", "text": piece}) for piece in s.pieces]
            events.append({"type": "content_block_stop", "index": 0})
        for index, call in enumerate(s.calls, 1):
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            text = json.dumps(call.arguments)
            events.append({"type": "content_block_start", "index": index, "content_block": block})
            for part in (text[:3], text[3:]):
                events.append(self._delta(index, {"type": "input_json_delta", "partial_json": part}))
            events.append({"type": "content_block_stop", "index": index})
        last = {"stop_reason": self._finish(s), "stop_sequence": None}
        counts = {"usage": {"output_tokens": s.usage[1]}} if s.usage else {}
        events.append({"type": "message_delta", "delta": last, **counts})
        events.append({"type": "message_stop"})
        return [self._event(e) for e in events]

    def failure(self, s: Scenario) -> Json:
        return {"type": "error", "error": {"type": "api_error", "message": s.error}}

    def error_event(self, s: Scenario) -> bytes:
        return self._event({"type": "error", "error": {"type": "overloaded_error", "message": s.error}})

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        assert headers["anthropic-version"]
        assert body["max_tokens"] > 0
        roles = [m["role"] for m in body["messages"]]
        assert roles[0] == "user"
        assert all(a != b for a, b in itertools.pairwise(roles)), roles
        blocks = [(m["role"], b) for m in body["messages"] for b in _blocks(m["content"])]
        return Seen(
            model=body["model"],
            system="\n\n".join(b["text"] for b in _blocks(body.get("system", []))),
            turns=tuple((role, b["text"]) for role, b in blocks if b["type"] == "text"),
            calls=tuple((b["name"], b["input"]) for _, b in blocks if b["type"] == "tool_use"),
            results=tuple(b["content"] for _, b in blocks if b["type"] == "tool_result" and b["tool_use_id"]),
            images=sum(b["type"] == "image" and bool(b["source"]) for _, b in blocks),
            files=sum(b["type"] == "document" and bool(b["source"]) for _, b in blocks),
            tools=tuple(t["name"] for t in body.get("tools") or ()),
            schema=body["output_config"]["format"]["schema"] if "output_config" in body else None,
            key=headers.get("x-api-key", ""),
            body=body,
        )

    def _head(self, s: Scenario) -> Json:
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}

    def _usage(self, s: Scenario) -> Json:
        inputs, outputs, cached = s.usage or (0, 0, 0)
        return {
            "input_tokens": inputs - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": outputs,
        }

    def _delta(self, index: int, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": index, "delta": delta}

    def _event(self, event: Json) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def _finish(self, s: Scenario) -> str:
        return "max_tokens" if s.length else "tool_use" if s.calls else "end_turn"


class OllamaSpeaker:
    path = "/api/chat"
    kind = "application/x-ndjson"

    def whole(self, s: Scenario) -> Json:
        whole = self._line("".join(s.pieces), s.calls) | self._last(s)
        whole["message"] |= {"thinking": s.thought} if s.thought else {}
        return whole

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        lines = [self._line(piece) for piece in s.pieces]
        lines += [self._line("", (call,)) for call in s.calls]
        lines.append(self._line("") | self._last(s))
        return [json.dumps(line).encode() + b"\n" for line in lines]

    def failure(self, s: Scenario) -> Json:
        return {"error": s.error}

    def error_event(self, s: Scenario) -> bytes:
        return json.dumps({"error": s.error}).encode() + b"\n"

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        messages = body["messages"]
        return Seen(
            model=body["model"],
            system="\n\n".join(m["content"] for m in messages if m["role"] == "system"),
            turns=tuple(
                (m["role"], m["content"])
                for m in messages
                if m["role"] in ("user", "assistant") and m["content"]
            ),
            calls=tuple(
                (c["function"]["name"], c["function"]["arguments"])
                for m in messages
                for c in m.get("tool_calls") or ()
            ),
            results=tuple(m["content"] for m in messages if m["role"] == "tool" and m["tool_name"]),
            images=sum(len(m.get("images") or ()) for m in messages),
            tools=tuple(t["function"]["name"] for t in body.get("tools") or ()),
            schema=body.get("format"),
            key=headers.get("authorization", "").removeprefix("Bearer "),
            body=body,
        )

    def _line(self, text: str, calls: tuple[Call, ...] = ()) -> Json:
        message: Json = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [{"function": {"name": c.name, "arguments": c.arguments}} for c in calls]
        return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}

    def _last(self, s: Scenario) -> Json:
        inputs, outputs, _ = s.usage or (0, 0, 0)
        counts = {"prompt_eval_count": inputs, "eval_count": outputs} if s.usage else {}
        return {"done": True, "done_reason": "length" if s.length else "stop", **counts}


class AzureSpeaker(OpenAISpeaker):
    """OpenAI's words at Azure's address, with Azure's header for the key."""

    path = "/openai/deployments/m-1/chat/completions"

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        judged: Json = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
        return [b"data: " + json.dumps(judged).encode() + b"\n\n", *super().events(s, body)]

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        assert not (token and "api-key" in headers)
        return replace(super().seen(body, headers), key=headers.get("api-key") or token)


class ResponsesSpeaker:
    """OpenAI's Responses API, as it answers requests with `store: false`."""

    path = "/v1/responses"
    kind = "text/event-stream"

    def whole(self, s: Scenario) -> Json:
        return self._response(s, self._output(s))

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        begun = self._response(s, [], status="in_progress") | {"usage": None, "incomplete_details": None}
        told: list[Json] = [{"type": "response.created", "response": begun}]
        for index, item in enumerate(self._output(s)):
            at = {"output_index": index}
            emptied = {"content": [], "arguments": "", "status": "in_progress"}
            started = item | {key: value for key, value in emptied.items() if key in item}
            told.append({"type": "response.output_item.added", **at, "item": started})
            told += [{**event, **at, "item_id": item["id"]} for event in self._growth(s, item)]
            told.append({"type": "response.output_item.done", **at, "item": item})
        last = "incomplete" if s.length else "completed"
        told.append({"type": f"response.{last}", "response": self.whole(s)})
        return [self._event(event, number) for number, event in enumerate(told)]

    def failure(self, s: Scenario) -> Json:
        return {"error": {"message": s.error, "type": "server_error", "param": None, "code": None}}

    def error_event(self, s: Scenario) -> bytes:
        error = {"type": "error", "code": "server_error", "message": s.error, "param": None}
        return self._event(error, 99)

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        assert body["store"] is False
        items = body["input"]
        said = [item for item in items if "role" in item]
        parts = [p for m in said if isinstance(m["content"], list) for p in m["content"]]
        form = (body.get("text") or {}).get("format") or {}
        return Seen(
            model=body["model"],
            system=body.get("instructions", ""),
            turns=tuple((m["role"], text) for m in said if (text := _text(m["content"]))),
            calls=tuple(
                (item["name"], json.loads(item["arguments"]))
                for item in items
                if item.get("type") == "function_call"
            ),
            results=tuple(
                item["output"]
                for item in items
                if item.get("type") == "function_call_output" and item["call_id"]
            ),
            images=sum(p["type"] == "input_image" and bool(p["image_url"]) for p in parts),
            files=sum(p["type"] == "input_file" and bool(p["file_data"]) for p in parts),
            tools=tuple(tool["name"] for tool in body.get("tools") or ()),
            schema=form.get("schema"),
            key=headers.get("authorization", "").removeprefix("Bearer "),
            body=body | {"max_tokens": body.get("max_output_tokens")},
        )

    def _growth(self, s: Scenario, item: Json) -> list[Json]:
        """The events between the begin and the end of an item."""
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            begun = {"type": "response.content_part.added", "content_index": 0, "part": part}
            delta = {"type": "response.output_text.delta", "content_index": 0, "logprobs": []}
            return [begun, *({**delta, "delta": piece} for piece in s.pieces)]
        if item["type"] == "reasoning":
            delta = {"type": "response.reasoning_summary_text.delta", "summary_index": 0}
            return [{**delta, "delta": "Hm."}]
        text, delta = item["arguments"], {"type": "response.function_call_arguments.delta"}
        return [{**delta, "delta": part} for part in (text[:3], text[3:])]

    def _output(self, s: Scenario) -> list[Json]:
        items: list[Json] = []
        if s.calls:
            summary = [{"type": "summary_text", "text": "Hm."}]
            state = {"summary": summary, "encrypted_content": s.thought or "gAAAA"}
            items.append({"type": "reasoning", "id": "rs_1", **state})
        if s.pieces:
            text = {"type": "output_text", "text": "".join(s.pieces), "annotations": [], "logprobs": []}
            items.append(
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            )
        for call in s.calls:
            called = {"call_id": call.id, "name": call.name, "arguments": json.dumps(call.arguments)}
            items.append({"type": "function_call", "id": f"fc_{call.id}", "status": "completed", **called})
        return items

    def _response(self, s: Scenario, output: list[Json], *, status: str = "") -> Json:
        ended: Json = {"status": "incomplete" if s.length else "completed"}
        ended["incomplete_details"] = {"reason": "max_output_tokens"} if s.length else None
        inputs, outputs, cached = s.usage or (0, 0, 0)
        usage = {
            "input_tokens": inputs,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": outputs,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": inputs + outputs,
        }
        return {
            "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": output,
            "error": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
            "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": [],
            **ended, **({"status": status} if status else {}),
            "usage": usage if s.usage else None,
        }  # fmt: skip

    def _event(self, event: Json, number: int) -> bytes:
        numbered = {**event, "sequence_number": number}
        return f"event: {event['type']}\ndata: {json.dumps(numbered)}\n\n".encode()


class GeminiSpeaker:
    path = "/v1beta/models/{call:m-1:(generateContent|streamGenerateContent)}"
    kind = "text/event-stream"

    def whole(self, s: Scenario) -> Json:
        parts: list[Json] = [{"text": "".join(s.pieces)}] if s.pieces else []
        return self._response(s, parts + self._calls(s), last=True)

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        told = [self._response(s, [{"text": "Hm.", "thought": True}])]
        told += [self._response(s, [{"text": piece}]) for piece in s.pieces]
        told += [self._response(s, [call]) for call in self._calls(s)]
        told.append(self._response(s, [{"text": ""}], last=True))
        return [b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in told]

    def failure(self, s: Scenario) -> Json:
        return {"error": {"code": 500, "message": s.error, "status": "INTERNAL"}}

    def error_event(self, s: Scenario) -> bytes:
        error = {"error": {"code": 503, "message": s.error, "status": "UNAVAILABLE"}}
        return b"data: " + json.dumps(error).encode() + b"\r\n\r\n"

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        roles = [turn["role"] for turn in body["contents"]]
        assert roles[0] == "user"
        assert all(a != b for a, b in itertools.pairwise(roles)), roles
        parts = [(turn["role"], part) for turn in body["contents"] for part in turn["parts"]]
        config = body.get("generationConfig") or {}
        inline = [part["inlineData"] for _, part in parts if "inlineData" in part]
        return Seen(
            model="m-1",
            system="".join(part["text"] for part in (body.get("systemInstruction") or {}).get("parts", ())),
            turns=tuple(
                ("assistant" if role == "model" else role, part["text"])
                for role, part in parts
                if "text" in part
            ),
            calls=tuple(
                (p["functionCall"]["name"], p["functionCall"]["args"])
                for _, p in parts
                if "functionCall" in p
            ),
            results=tuple(
                p["functionResponse"]["response"]["result"]
                for _, p in parts
                if "functionResponse" in p and p["functionResponse"]["name"]
            ),
            images=sum(one["mimeType"] == "image/png" and bool(one["data"]) for one in inline),
            files=sum(one["mimeType"] == "application/pdf" and bool(one["data"]) for one in inline),
            tools=tuple(d["name"] for t in body.get("tools") or () for d in t["functionDeclarations"]),
            schema=config.get("responseJsonSchema"),
            key=headers.get("x-goog-api-key", ""),
            body=body | config | {"max_tokens": config.get("maxOutputTokens")},
        )

    def _calls(self, s: Scenario) -> list[Json]:
        return [
            {
                "functionCall": {"id": c.id, "name": c.name, "args": c.arguments},
                "thoughtSignature": s.thought or f"s-{c.id}",
            }
            for c in s.calls
        ]

    def _response(self, s: Scenario, parts: list[Json], *, last: bool = False) -> Json:
        candidate: Json = {"index": 0, "content": {"role": "model", "parts": parts}}
        if last:
            candidate["finishReason"] = "MAX_TOKENS" if s.length else "STOP"
        inputs, outputs, cached = s.usage or (0, 0, 0)
        counts = {
            "promptTokenCount": inputs,
            "candidatesTokenCount": outputs - 1,
            "thoughtsTokenCount": 1,
            "cachedContentTokenCount": cached,
        }
        return {"candidates": [candidate], **({"usageMetadata": counts} if s.usage and last else {})}


class VertexSpeaker(GeminiSpeaker):
    """Gemini's words at Vertex's address, for whoever has an access token."""

    path = "/v1/{parent:.*}publishers/google/models/{call:m-1:(generateContent|streamGenerateContent)}"

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        return replace(super().seen(body, headers), key=token or headers.get("x-goog-api-key", ""))


class BedrockSpeaker:
    path = "/model/{model}/{call:converse|converse-stream}"
    kind = "application/vnd.amazon.eventstream"

    def whole(self, s: Scenario) -> Json:
        signed = {"reasoningText": {"text": "Hm.", "signature": s.thought}}
        blocks: list[Json] = [{"reasoningContent": signed}] if s.thought else []
        blocks += [{"text": "".join(s.pieces)}] if s.pieces else []
        blocks += [{"toolUse": {"toolUseId": c.id, "name": c.name, "input": c.arguments}} for c in s.calls]
        answer = {"output": {"message": {"role": "assistant", "content": blocks}}}
        counts = {"usage": self._usage(s)} if s.usage else {}
        return {**answer, "stopReason": self._finish(s), "metrics": {"latencyMs": 1}, **counts}

    def events(self, s: Scenario, body: Json) -> list[bytes]:
        told = [aws.event("messageStart", {"role": "assistant"})]
        told += [self._delta(0, {"text": piece}) for piece in s.pieces]
        if s.pieces:
            told.append(aws.event("contentBlockStop", {"contentBlockIndex": 0}))
        if s.thought:
            told += [
                self._delta(9, {"reasoningContent": piece})
                for piece in ({"text": "Hm."}, {"signature": s.thought})
            ]
        for index, call in enumerate(s.calls, 10):
            start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
            text = json.dumps(call.arguments)
            told.append(aws.event("contentBlockStart", {"contentBlockIndex": index, "start": start}))
            told += [self._delta(index, {"toolUse": {"input": part}}) for part in (text[:3], text[3:])]
            told.append(aws.event("contentBlockStop", {"contentBlockIndex": index}))
        told.append(aws.event("messageStop", {"stopReason": self._finish(s)}))
        counts = {"usage": self._usage(s)} if s.usage else {}
        return [*told, aws.event("metadata", {**counts, "metrics": {"latencyMs": 1}})]

    def failure(self, s: Scenario) -> Json:
        return {"message": s.error}

    def error_event(self, s: Scenario) -> bytes:
        return aws.event("serviceUnavailableException", {"message": s.error}, message="exception")

    def seen(self, body: Json, headers: Mapping[str, str]) -> Seen:
        roles = [m["role"] for m in body["messages"]]
        assert roles[0] == "user"
        assert all(a != b for a, b in itertools.pairwise(roles)), roles
        blocks = [(m["role"], block) for m in body["messages"] for block in m["content"]]
        tools = body.get("toolConfig", {}).get("tools", ())
        assert tools or not any("toolUse" in block for _, block in blocks), "calls need tools"
        form = body.get("outputConfig", {}).get("textFormat", {}).get("structure", {}).get("jsonSchema")
        config = body.get("inferenceConfig", {})
        return Seen(
            model="m-1",
            system="\n\n".join(block["text"] for block in body.get("system", ()) if "text" in block),
            turns=tuple((role, block["text"]) for role, block in blocks if "text" in block),
            calls=tuple((b["toolUse"]["name"], b["toolUse"]["input"]) for _, b in blocks if "toolUse" in b),
            results=tuple(
                b["toolResult"]["content"][0]["text"]
                for _, b in blocks
                if "toolResult" in b and b["toolResult"]["toolUseId"]
            ),
            images=sum("image" in block and bool(block["image"]["source"]["bytes"]) for _, block in blocks),
            files=sum("document" in b and bool(b["document"]["source"]["bytes"]) for _, b in blocks),
            tools=tuple(tool["toolSpec"]["name"] for tool in tools if "toolSpec" in tool),
            schema=json.loads(form["schema"]) if form else None,
            key=headers.get("authorization", "").removeprefix("Bearer "),
            body=body | config | {"max_tokens": config.get("maxTokens"), "tools": [*tools]},
        )

    def _usage(self, s: Scenario) -> Json:
        inputs, outputs, cached = s.usage or (0, 0, 0)
        return {
            "inputTokens": inputs - cached,
            "outputTokens": outputs,
            "totalTokens": inputs + outputs,
            "cacheReadInputTokens": cached,
            "cacheWriteInputTokens": 0,
        }

    def _delta(self, index: int, delta: Json) -> bytes:
        return aws.event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})

    def _finish(self, s: Scenario) -> str:
        return "max_tokens" if s.length else "tool_use" if s.calls else "end_turn"


Speaker = OpenAISpeaker | ResponsesSpeaker | AnthropicSpeaker | OllamaSpeaker | GeminiSpeaker | BedrockSpeaker
SPEAKERS: tuple[Speaker, ...] = (
    OpenAISpeaker(), AzureSpeaker(), ResponsesSpeaker(), AnthropicSpeaker(), OllamaSpeaker(), GeminiSpeaker(),
    VertexSpeaker(), BedrockSpeaker(),
)  # fmt: skip


class ModelServer:
    """An async context manager.

    Args:
        secret: of whoever signs requests to Bedrock; it counts as the key of a request with a good signature.

    Attributes:
        url: `http://127.0.0.1:PORT`.
        script: scenarios of the next requests; the last one stays.
        seen, paths: the requests so far.
        left: streams whose client went away before their end.
        tokens: requests for an access token, which is the secret.
        refuses_tokens: whether it answers them with 401.
        roles: how often the credentials of a container's role were asked for.
    """

    def __init__(self, secret: str = "") -> None:
        self.secret = secret
        self.tokens: list[dict[str, str]] = []
        self.refuses_tokens = False
        self.roles = 0
        self.url = ""
        self.script: list[Scenario] = [Scenario()]
        self.seen: list[Seen] = []
        self.paths: list[str] = []
        self.left = 0
        self._gone = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**24)
        for speaker in SPEAKERS:
            app.router.add_post(speaker.path, self._answering(speaker))
        app.router.add_post("/token", self._give_token)
        app.router.add_post("/{tenant}/oauth2/v2.0/token", self._give_token)
        app.router.add_get("/identity", self._give_token)
        app.router.add_get("/role", self._give_role)
        for path in (
            "/", "/v1/models", "/api/version", "/openai/models", "/v1beta/models",
            "/v1/publishers/google/models/m-1",
        ):  # fmt: skip
            app.router.add_get(path, self._ping)
        # cancels a handler whose client has left, as a real service stops generating
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def client_left(self) -> None:
        """Waits until a client has left a stream before its end."""
        await asyncio.wait_for(self._gone.wait(), 10)

    def _answering(self, speaker: Speaker) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.paths.append(request.path_qs)
            seen = speaker.seen(body, request.headers)
            raw = await request.read()
            if aws.is_signed(self.secret, request.method, request.raw_path, request.headers, raw):
                seen = replace(seen, key=self.secret)
            self.seen.append(seen)
            scenario = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if scenario.status != 200:
                answer = speaker.failure(scenario)
                return web.json_response(answer, status=scenario.status, headers=scenario.headers)
            if body.get("stream") or request.path.endswith((":streamGenerateContent", "/converse-stream")):
                return await self._stream(request, speaker, scenario, body)
            return await self._whole(request, speaker, scenario)

        return handle

    async def _whole(self, request: web.Request, speaker: Speaker, scenario: Scenario) -> web.StreamResponse:
        payload = scenario.raw if scenario.then == "raw" else json.dumps(speaker.whole(scenario)).encode()
        if scenario.then == "error":
            payload = json.dumps(speaker.failure(scenario)).encode()
        response = web.StreamResponse(
            headers={"content-type": "application/json", "content-length": str(len(payload))}
        )
        if scenario.then == "silent":
            await asyncio.sleep(30)
        if scenario.then == "cut":
            if scenario.after:
                await response.prepare(request)
                await response.write(payload[: len(payload) // 2])
            _abort(request)
            return response
        await response.prepare(request)
        await response.write(payload)
        return response

    async def _stream(
        self, request: web.Request, speaker: Speaker, scenario: Scenario, body: Json
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": speaker.kind})
        events = speaker.events(scenario, body)
        try:
            if scenario.after or scenario.then != "cut":
                await response.prepare(request)
            for event in events[: scenario.after]:
                await response.write(event)
            if scenario.then in ("raw", "error"):
                await response.write(
                    scenario.raw if scenario.then == "raw" else speaker.error_event(scenario)
                )
            elif scenario.then == "cut":
                await asyncio.sleep(0.01)  # lets what was written leave
                _abort(request)
            elif scenario.then == "silent":
                await asyncio.sleep(30)
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            self._gone.set()
            raise
        return response

    async def _give_token(self, request: web.Request) -> web.Response:
        """Google's and Microsoft's services of tokens, and that of a managed identity."""
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.tokens.append({"path": request.path, **form, **request.query, **_identity_header(request)})
        if self.refuses_tokens:
            return web.json_response({"error": "invalid_client"}, status=401)
        lasts = {"expires_on": "4102444800"} if request.query else {"expires_in": 3600}
        return web.json_response({"access_token": self.secret, "token_type": "Bearer", **lasts})

    async def _give_role(self, request: web.Request) -> web.Response:
        """The credentials of a container's role, as AWS's agent gives them."""
        self.roles += 1
        ends = datetime.now(UTC) + timedelta(minutes=12)  # botocore renews what has less than 15
        role = {"AccessKeyId": "A", "SecretAccessKey": self.secret, "Token": f"t{self.roles}"}
        return web.json_response({**role, "Expiration": ends.isoformat()})

    async def _ping(self, request: web.Request) -> web.Response:
        scenario = self.script[0]
        return web.json_response({"object": "list", "data": []}, status=scenario.status)


def _identity_header(request: web.Request) -> dict[str, str]:
    name = "x-identity-header"
    return {name: request.headers[name]} if name in request.headers else {}


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(p["text"] for p in content if p["type"] in ("text", "input_text"))
    return content or ""


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
