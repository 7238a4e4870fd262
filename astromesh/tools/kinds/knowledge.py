"""`type: rag`: passages of a knowledge pipeline, each with its source."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import ConfigError, StoreUnavailable
from astromesh.knowledge.base import KnowledgePipeline
from astromesh.plugins import Deps
from astromesh.text import did_you_mean
from astromesh.tools.base import ToolContext
from astromesh.types import DEFAULT_TENANT, JsonObject, ToolSpec

#: most passages per call
MAX_TOP_K = 50


class KnowledgeTool:
    """Returns `{"passages": [{document, title, heading, start, end, score, text}]}`, best first."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        pipeline: str = Field(min_length=1, description="Name of the pipeline: NAME of rag/NAME.rag.yaml.")
        top_k: int | None = Field(
            None, ge=1, le=MAX_TOP_K,
            description="Passages per search unless the model sets `top_k`; absent: `retrieval.top_k`.",
        )  # fmt: skip
        filters: dict[str, Any] = Field(
            default_factory=dict,
            description="Only passages whose metadata has these values, e.g. `document`.",
        )

    def __init__(self, options: Options, knowledge: KnowledgePipeline) -> None:
        self.spec = ToolSpec(
            "search",
            f"Searches {options.pipeline} and returns the best passages with their sources.",
            {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "The search query"},
                    "top_k": {
                        "type": "integer", "description": "Number of results to return",
                        "minimum": 1, "maximum": MAX_TOP_K,
                        **({"default": options.top_k} if options.top_k else {}),
                    },
                },
                "required": ["query"],
            },
        )  # fmt: skip
        self._knowledge = knowledge
        self._top_k = options.top_k
        self._filters = options.filters

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> KnowledgeTool:
        """Raises: ConfigError: the pipeline does not exist. StoreUnavailable: it could not be opened."""
        knowledge = deps.knowledge.get(options.pipeline)
        if knowledge is None:
            if why := deps.unavailable_knowledge.get(options.pipeline):
                raise StoreUnavailable(f"The RAG pipeline `{options.pipeline}` could not be opened: {why}")
            hint = did_you_mean(options.pipeline, deps.knowledge)
            names = ", ".join(sorted(deps.knowledge))
            known = f"Known: {names}." if names else "None is declared: write rag/NAME.rag.yaml."
            raise ConfigError(
                " ".join(filter(None, (f"Unknown RAG pipeline `{options.pipeline}`.", hint, known)))
            )
        return cls(options, knowledge)

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> JsonObject:
        top_k = arguments.get("top_k") or self._top_k
        found = await self._knowledge.query(
            arguments["query"],
            tenant=context.session.tenant or DEFAULT_TENANT,
            top_k=top_k,
            filters=self._filters or None,
        )
        return {"passages": [passage.to_json() for passage in found]}
