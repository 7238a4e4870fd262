"""A cross-encoder in this process: it reads question and passage together and grades how well they fit.

Any sequence classifier in ONNX with its tokenizer will do; astromesh ships none. Libraries and model are
loaded with the first question.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Self

from astromesh.knowledge.base import Passage
from astromesh.knowledge.onnx import ModelFiles, model_errors, model_files, open_session, require_libraries
from astromesh.plugins import Deps

#: pairs that are graded at once, and the most characters of a question and of a passage
_BATCH, _QUESTION, _PASSAGE = 4, 2000, 8000
Grade = Callable[[str, Sequence[str]], list[float]]


class CrossEncoder:
    """The plugin `cross_encoder`: grades passages by a model on disk."""

    def __init__(self, files: ModelFiles) -> None:
        self._files = files
        self._grade: Grade | None = None
        self._load_lock = threading.Lock()

    @classmethod
    async def open(cls, model: str, deps: Deps) -> Self:
        """Opens the model of a folder, relative to that of the configuration; nothing is loaded yet.

        Raises:
            MissingExtra: the extra is not installed.
            ConfigError: the folder holds no model.
        """
        require_libraries("A cross-encoder")
        return cls(model_files(deps.config_dir / model, "A cross-encoder"))

    async def grades(self, query: str, passages: Sequence[Passage]) -> list[float]:
        """Returns how well each passage answers, from 0 to 1.

        Raises:
            ProviderUnavailable: the model cannot be loaded, does not run, or is no cross-encoder.
        """
        texts = ["\n".join(filter(None, (one.chunk.heading, one.chunk.text))) for one in passages]
        found: list[float] = []
        for start in range(0, len(texts), _BATCH):
            found += await asyncio.to_thread(self._grade_batch, query, texts[start : start + _BATCH])
        return found

    def _grade_batch(self, query: str, texts: Sequence[str]) -> list[float]:
        with model_errors(f"The cross-encoder {self._files.name}", f"onnx/{self._files.name}"):
            with self._load_lock:
                grade = self._grade = self._grade or _load(self._files)
            return grade(query[:_QUESTION], [text[:_PASSAGE] for text in texts])


def _load(files: ModelFiles) -> Grade:
    tokenizer, session = open_session(files)
    return partial(_grade, tokenizer, session, {one.name for one in session.get_inputs()})


def _grade(tokenizer: Any, session: Any, inputs: set[str], query: str, texts: Sequence[str]) -> list[float]:
    np = import_module("numpy")

    sound = [part.encode("utf-8", "replace").decode() for part in (query, *texts)]
    tokens = tokenizer.encode_batch([(sound[0], text) for text in sound[1:]])
    given = {
        "input_ids": [one.ids for one in tokens],
        "attention_mask": [one.attention_mask for one in tokens],
        "token_type_ids": [one.type_ids for one in tokens],
    }
    rows = session.run(None, {name: np.array(given[name], np.int64) for name in given if name in inputs})[0]
    if rows.ndim != 2 or rows.shape[1] > 2:
        raise ValueError(
            f"its output has the shape {rows.shape}; a cross-encoder has one or two numbers a pair"
        )
    # of two classes the second is "fits"; their difference is the logit
    logits = rows[:, -1] - (rows[:, 0] if rows.shape[1] == 2 else 0.0)
    grades = 1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -60, 60)))
    if not np.isfinite(grades).all():
        raise ValueError("its grades are not finite")
    return [float(grade) for grade in grades]
