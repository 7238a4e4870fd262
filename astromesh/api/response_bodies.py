"""Requests for responses: items, tools, parameters, and the conversation that they say."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    TypeAdapter,
)
from pydantic_core import PydanticCustomError

from astromesh.api.chat_requests import Sampling, add_call, attachment_of, file_of, not_open
from astromesh.api.requests import MAX_TOOLS, FunctionIn, ToolName, storable
from astromesh.errors import InvalidInput
from astromesh.tools.base import ClientTools
from astromesh.types import Attachment, JsonObject, Message, ToolCall


class ResponsePart(BaseModel):
    """A part of a message: text, a refusal of the model, a picture or a file."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["input_text", "output_text", "text", "summary_text", "refusal", "input_image", "input_file"]
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    filename: str | None = None
    file_data: str | None = None
    file_url: str | None = None

    def plain_text(self) -> str:
        return self.refusal or self.text

    def attachment(self) -> Attachment:
        name = self.filename or ""
        if self.type == "input_file" and self.file_data:
            return file_of(self.file_data, name)
        url = self.image_url if self.type == "input_image" else self.file_url
        if not url:
            needed = "an image_url" if self.type == "input_image" else "file_data or a file_url"
            raise InvalidInput(f"{self.type} needs {needed}: there are no stored files.", param="input")
        return attachment_of(url, "input", name=name)


Content = str | list[ResponsePart]
_ATTACHED = frozenset({"input_image", "input_file"})


def _text_of(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.plain_text() for part in content if part.type not in _ATTACHED)


class MessageItem(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    def text(self) -> str:
        return _text_of(self.content)

    def message(self) -> Message:
        role: Literal["user", "assistant"] = "user" if self.role == "user" else "assistant"
        parts = self.content if isinstance(self.content, list) else []
        attached = tuple(part.attachment() for part in parts if part.type in _ATTACHED)
        return Message(role, self.text(), attachments=attached)


class CallItem(BaseModel):
    """A call that an earlier response has asked for."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=256)
    name: str
    arguments: str = "{}"


class ResultItem(BaseModel):
    """The result of a call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1, max_length=256)
    output: Content

    def text(self) -> str:
        return _text_of(self.output)


class ReasoningItem(BaseModel):
    """What a model has thought before. Models do not get it again: the agent's provider keeps its own."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["reasoning"]


class CompactionItem(BaseModel):
    """A summary that `/v1/responses/compact` has made."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["compaction"]
    encrypted_content: str


class ReferenceItem(BaseModel):
    """An item of a stored response."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["item_reference"] = "item_reference"
    id: str


def _kind(item: Any) -> str:
    """A message may leave out its type, and a reference, too."""
    if isinstance(item, BaseModel):
        return str(getattr(item, "type", "message"))
    if not isinstance(item, dict):
        return "message"
    return str(item.get("type") or ("message" if "role" in item or "id" not in item else "item_reference"))


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ReferenceItem, Tag("item_reference")],
    Discriminator(_kind),
]
Input = str | list[InputItem]


class ResponseFunction(FunctionIn):
    """A function that the client executes. Calls are always checked against the schema, as `strict` asks."""

    type: Literal["function"]
    strict: bool | None = None

    def echo(self) -> JsonObject:
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": True if self.strict is None else self.strict,
        }


def _function(tool: Any) -> Any:
    """Raises: PydanticCustomError: it is a tool that the client does not execute."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError(
            "hosted_tool",
            "{kind} is a hosted tool. An agent has its own tools; a request brings tools of type 'function', "
            "which the client executes",
            {"kind": repr(kind[:64])},
        )
    return tool


ResponseTool = Annotated[ResponseFunction, BeforeValidator(_function)]


class FunctionChoice(BaseModel):
    type: Literal["function"]
    name: ToolName


class AllowedTools(BaseModel):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    tools: list[FunctionChoice]
    mode: Literal["auto", "none", "required"] = "auto"


Choice = Literal["auto", "none", "required"] | FunctionChoice | AllowedTools


class AnyFormat(BaseModel):
    """The form of the answer."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str | None = None
    form: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    def echo(self) -> JsonObject:
        if self.type != "json_schema":
            return {"type": self.type}
        # the published schema allows no value of `schema`
        more = {"description": self.description, "schema": None, "strict": self.strict or False}
        return {"type": self.type, "name": self.name, **more}


class TextOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    format: AnyFormat = AnyFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether an agent follows it: its model is configured with its own."""
        return (
            self.effort in (None, "medium")
            and self.summary in (None, "auto")
            and self.generate_summary in (None, "auto")
            and self.context in (None, "auto")
            and self.mode in (None, "standard")
        )


class ConversationBody(BaseModel):
    """What requests for responses and for their compaction share."""

    model: str
    input: Input | None = None
    instructions: str | None = Field(None, description="Untrusted context; the agent's prompt stays.")
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None

    def items(self) -> list[Any]:
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return list(self.input or [])


class CompactBody(ConversationBody):
    """A conversation to compact."""

    model_config = ConfigDict(extra="allow")


#: as OpenAI limits it, and at most 4 KiB of JSON, as that of every run
ResponseMetadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    AfterValidator(storable),
]


class ResponseBody(ConversationBody, Sampling):
    """The fields that have an effect. Others are refused unless they have the protocol's default."""

    stream: StrictBool | None = None
    store: StrictBool | None = Field(None, description="Whether it can be read later; true by default.")
    background: StrictBool | None = None
    metadata: ResponseMetadata | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="Tools that the client executes."
    )
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    safety_identifier: str | None = None

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def parameters(self) -> dict[str, Any]:
        limit = {} if self.max_output_tokens is None else {"max_tokens": self.max_output_tokens}
        return {**super().parameters(), **limit}

    def client_tools(self) -> ClientTools:
        """Returns the tools that the model may call.

        Raises:
            InvalidInput: the choice names a tool that the request does not bring.
        """
        specs = tuple(tool.spec() for tool in self.tools or ())
        choice = self.tool_choice
        if isinstance(choice, AllowedTools):
            names = {tool.name for tool in choice.tools}
            if unknown := names - {spec.name for spec in specs}:
                raise InvalidInput(f"tool_choice: there is no tool {min(unknown)!r}.", param="tool_choice")
            specs, choice = tuple(spec for spec in specs if spec.name in names), choice.mode
        if choice == "none":
            return ClientTools()
        return ClientTools(specs, choice.name if isinstance(choice, FunctionChoice) else choice or "auto")

    def output_schema(self, *, has_own: bool) -> JsonObject | None:
        """Returns the schema of the answer. `has_own`: the agent has one, so that its answers are JSON."""
        form = self.text.format if self.text else AnyFormat(type="text")
        if form.type == "json_schema":
            return form.form or {"type": "object"}
        return {"type": "object"} if form.type == "json_object" and not has_own else None

    def echo(self) -> JsonObject:
        """Returns the parameters as the response shows them, but for text that the input rules check."""
        choice = self.tool_choice
        text = self.text or TextOptions()
        verbosity = {"verbosity": text.verbosity} if text.verbosity else {}
        return {
            "model": self.model,
            "previous_response_id": self.previous_response_id,
            "tools": [tool.echo() for tool in self.tools or ()],
            "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
            "truncation": self.truncation or "disabled",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": {"format": text.format.echo(), **verbosity},
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "presence_penalty": self.presence_penalty or 0.0,
            "frequency_penalty": self.frequency_penalty or 0.0,
            "top_logprobs": 0,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "reasoning": {"effort": None, "summary": self.reasoning.summary if self.reasoning else None},
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "store": self.is_stored,
            "background": bool(self.background),
            "service_tier": "default",
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


def reject_impossible(body: ResponseBody) -> None:
    """Raises: InvalidInput, NotOverridable: a combination or a value that an agent cannot follow."""
    if body.background and not body.is_stored:
        raise InvalidInput("A response in the background is stored: remove store.", param="store")
    if not body.tools and body.tool_choice not in (None, "auto", "none"):
        raise InvalidInput("Remove tool_choice: the request has no tools.", param="tool_choice")
    if body.reasoning and not body.reasoning.is_default:
        raise not_open("reasoning")
    if body.text and body.text.verbosity not in (None, "medium"):
        raise not_open("text.verbosity")


class ItemContent(NamedTuple):
    """The content of input items.

    Args:
        system: texts of the client's system messages, and summaries.
        messages: of users, assistants and tools.
        results: of calls, by the ids of the calls, as far as they stand behind everything else.
    """

    system: tuple[str, ...]
    messages: tuple[Message, ...]
    results: Mapping[str, str]


def read_items(items: Iterable[Any], names: Mapping[str, str]) -> ItemContent:
    """Returns the content of items without references.

    Args:
        names: of the tools of earlier calls, by the ids of the calls.

    Raises:
        InvalidInput: a call has two outputs, or a summary is none of this server.
    """
    system: list[str] = []
    messages: list[Message] = []
    known, results = dict(names), dict[str, str]()
    for item in items:
        match item:
            case MessageItem(role="system" | "developer"):
                system.append(item.text())
            case MessageItem():
                messages.append(item.message())
                results = {}
            case CallItem():
                known[item.call_id] = item.name
                add_call(messages, ToolCall(item.call_id, item.name, item.arguments))
                results = {}
            case ResultItem():
                if item.call_id in results:
                    raise InvalidInput(f"There are two outputs of the call {item.call_id!r}.", param="input")
                results[item.call_id] = item.text()
                name = known.get(item.call_id, "")
                messages.append(Message("tool", item.text(), tool_call_id=item.call_id, name=name))
            case CompactionItem():
                system.append(_summary_of(item.encrypted_content))
    return ItemContent(tuple(system), tuple(messages), results)


_STORED: TypeAdapter[InputItem] = TypeAdapter(InputItem)


def stored_items(items: Iterable[JsonObject]) -> list[Any]:
    """Returns items of stored responses as a request has them."""
    return [_STORED.validate_python(item) for item in items]


# -- messages as items ---------------------------------------------------------------------------------------


def message_items(suffix: str, system: Sequence[str], messages: Sequence[Message]) -> list[JsonObject]:
    """Returns the items of a stored request."""
    found: list[JsonObject] = [_message_item("system", text, ()) for text in system]
    for message in messages:
        found += _items_of(message)
    return [{"id": f"in_{suffix}_{n}", **item} for n, item in enumerate(found)]


def _items_of(message: Message) -> Iterable[JsonObject]:
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": message.content,
            "status": "completed",
        }
        return
    if message.content or message.attachments or not message.tool_calls:
        yield _message_item(message.role, message.content, message.attachments)
    for call in message.tool_calls:
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        yield {"type": "function_call", **fields, "status": "completed"}


def _message_item(role: str, text: str, attachments: Sequence[Attachment]) -> JsonObject:
    kind = "output_text" if role == "assistant" else "input_text"
    more: JsonObject = {"annotations": [], "logprobs": []} if role == "assistant" else {}
    content: list[JsonObject] = [{"type": kind, "text": text, **more}]
    for one in attachments:
        if one.kind == "image":
            url = one.url or f"data:{one.media_type};base64,{one.data}"
            content.append({"type": "input_image", "image_url": url, "detail": "auto"})
        else:
            content.append({"type": "input_file", "filename": one.name or None})
    return {"type": "message", "role": role, "status": "completed", "content": content}


# -- summaries -----------------------------------------------------------------------------------------------


def compaction_item(id: str, summary: str) -> JsonObject:
    """Returns a summary as an item. It is opaque, not secret: the client has seen what it is made of."""
    content = urlsafe_b64encode(orjson.dumps({"summary": summary})).decode()
    return {"type": "compaction", "id": id, "encrypted_content": content}


def _summary_of(content: str) -> str:
    try:
        return str(orjson.loads(urlsafe_b64decode(content))["summary"])
    except (ValueError, KeyError, TypeError) as error:
        detail = "encrypted_content: this is not a compaction of this server."
        raise InvalidInput(detail, param="input") from error
