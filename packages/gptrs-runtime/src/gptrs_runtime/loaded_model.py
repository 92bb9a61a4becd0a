"""A model ready to run: its module, its files, its tokenizer and settings, by one set of names."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

import numpy as np
from msgspec.structs import replace

from gptrs.backend.contract import (
    Backend,
)
from gptrs.checkpoint.adapter_config import LowRankAdapter
from gptrs.checkpoint.param_source import ParamSource, StoredTensor
from gptrs.checkpoint.params import Params
from gptrs.errors import ModelError, UsageError
from gptrs.functionals.dispatch.active_overrides import Choice, entered
from gptrs.lazy_module import lazy_module
from gptrs.nn.layers import Computation, Module
from gptrs.plugins.capabilities import (
    HiddenStates,
    capabilities_of,
)
from gptrs.quoting import listed, quoted, shown_value
from gptrs.spans import span
from gptrs_runtime.capable_model import AS_EMBEDDER, RERANKER, CapableModel
from gptrs_runtime.chat.conversation import Conversation
from gptrs_runtime.chat.messages import Message, least_text
from gptrs_runtime.content_digest import weights_digest
from gptrs_runtime.images.image_prompts import PicturedTokens
from gptrs_runtime.input_checks import require_images, require_known_tokens
from gptrs_runtime.running_model import RunningModel, model_factory
from gptrs_runtime.sources.model_folder import MODULES, ends_in_logits
from gptrs_runtime.sources.model_source import TOKENIZER, ModelSource
from gptrs_runtime.text_batches import Prompt, checked_prompt, shown_count
from gptrs_runtime.tokenization.tokenizer import TextTokenizer, tokenizer_of

if TYPE_CHECKING:
    from gptrs.capture.streaming.streamed_executable import MruStreamer
    from gptrs.nn.draft_head import DraftHead
    from gptrs.plugins.capabilities import DraftHeadSource
    from gptrs_runtime.chat import template as chat_templates
    from gptrs_runtime.chat.template import ChatTemplate
    from gptrs_runtime.images import image_prompts
    from gptrs_runtime.images import settings as image_settings
    from gptrs_runtime.images.processor import ImageProcessor
    from gptrs_runtime.images.tiling import TilingProcessor
else:
    chat_templates = lazy_module("gptrs_runtime.chat.template")
    image_prompts = lazy_module("gptrs_runtime.images.image_prompts")
    image_settings = lazy_module("gptrs_runtime.images.settings")

HEAD: Final = "draft_head"
"""The capability of draft heads in a checkpoint of their own."""
_LOG = logging.getLogger(__name__)
_VERBS: Final = frozenset(
    (
        *("answer_reader", "astream", "classify", "embed", "embed_images", "fill", "generate"),
        *("generate_batch", "generate_several", "match", "rank", "read_answer", "stream", "tag"),
        *("learn_vectors", "logit_lens", "transcribe", "zero_shot"),
    )
)
"""The functions of `gptrs` that take a model first."""


class LoadedModel(CapableModel):
    """A model of any kind, ready to run.

    `kind` is the `model_type` of its config, `config` the whole of config.json, `capabilities` its
    capabilities (`causal_lm`: generate text), `files` its source, `load_seconds` the time that
    loading took. `template_variables` are JSON values for its chat template, such as
    `enable_thinking`. Weights are read from the memory-mapped checkpoint when a run first needs
    them. The model runs with the overrides of functionals in `overrides`. `streamer` keeps the
    weights within their budget, if they have one. `weight_type` is the type to which they were
    quantized at load, if any. `adapter` modifies the weights, which belong to the model `base` if
    several models share them.
    """

    def __init__(
        self,
        source: ModelSource,
        module: object,
        backend: Backend,
        load_seconds: float,
        overrides: Mapping[str, Choice],
        streamer: MruStreamer | None = None,
        weight_type: str | None = None,
        params: Params | None = None,
        adapter: LowRankAdapter | None = None,
    ) -> None:
        self.kind = source.model_type
        capabilities = capabilities_of(module)
        if capabilities >= AS_EMBEDDER and source.has_file(MODULES):
            capabilities |= {RERANKER if ends_in_logits(source) else "text_embedder"}
        self.overrides = overrides
        self.files = source
        super().__init__(source.name, capabilities, self._running(module))
        self.config = adapted_config(source.config, adapter)
        self.generation_config = source.generation_config
        self.backend = backend
        self.load_seconds = load_seconds
        self._image_processor: ImageProcessor | None = None
        self.weights: ParamSource = source.weights
        self.streamer = streamer
        self.weight_type = weight_type
        self.adapter = adapter
        self.base: LoadedModel | None = None
        self._params = params
        self._heads: WeakKeyDictionary[LoadedModel, DraftHead] = WeakKeyDictionary()
        """Of a draft head: the heads beside the models that it has guessed for."""
        self._tokenizer: TextTokenizer | None = None
        self._templates: dict[bool, ChatTemplate] = {}
        """The chat templates read so far, by whether tools are passed."""
        self.template_variables: dict[str, object] = {}

    # Type checkers would otherwise accept any attribute.
    @property
    def path(self) -> Path:
        """The folder or file that it was loaded from."""
        return self.files.path

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Raise AttributeError that names the function to call instead of a method."""
            kind = type(self).__name__
            where = f"; call `gptrs.{name}(model, ...)`" if name in _VERBS else ""
            raise AttributeError(f"`{kind}` has no attribute `{name}`{where}")

    def __repr__(self) -> str:
        can = ", ".join(sorted(self.capabilities)) or "no capabilities"
        facts = ", ".join([f"{self.kind} on {self.backend.name}", *self.size()])
        return f"<LoadedModel {self.name}: {facts}; {can}>"

    def size(self) -> list[str]:
        """Return the number of its parameters with their types, and the length of its context."""
        types = [self.weights.type_of(name) for name in self.weights.names()]
        sizes = Counter[str]()
        for type_ in types:
            sizes[type_.dtype.name] += math.prod(type_.shape)
        found: list[str] = []
        if sizes:
            dtypes = "/".join(dtype for dtype, _ in sizes.most_common(2))
            found.append(f"{shown_count(sizes.total())} parameters {dtypes}")
        if "causal_lm" in self.capabilities:
            found.append(f"context {self.causal_lm().context_length}")
        return found

    def with_adapter(self, path: str | Path, name: str | None = None) -> LoadedModel:
        """Return this model with a LoRA adapter from a folder, called `name`.

        Any number of such models share the weights; products of the adapter are added to layers as
        they run. Each model has separate cached prompts. ModelError for adapters that do not suit
        the model or are not supported, and for a model that has one already.
        """
        if self._params is None or self.adapter is not None:
            has = "an adapter already" if self.adapter is not None else "no weights to share"
            raise ModelError(
                f"`{self.name}` has {has}", hint="load the model, and give that its adapters"
            )
        started = time.perf_counter()
        adapter = LowRankAdapter(path)
        params = self._params.adapted(adapter)
        module = self._made_of(params, adapted_config(self.config, adapter))
        require_adapted(params, adapter, self.files)
        elapsed = time.perf_counter() - started
        made = LoadedModel(
            self.files, module, self.backend, elapsed, self.overrides, self.streamer,
            self.weight_type, params, adapter,
        )  # fmt: skip
        made.name = self.name if name is None else name
        made.base = self
        return made

    def with_several(self, adapters: Sequence[LowRankAdapter]) -> object:
        """Return the module of this model whose linear layers have all of `adapters`.

        Meant for `adapted_step`, if the module has it; raises the errors of `with_adapter`.
        """
        assert self._params is not None, "it has given its weights to each of them"
        more = next((adapter for adapter in adapters if not adapter.is_summed), None)
        if more is not None:
            raise ModelError(
                f"the adapter {quoted(str(more.path), 200)} does more than add products to layers",
                hint="run it in separate steps",
            )
        return self._running(self._made_of(self._params.adapted(*adapters), self.config))

    def _made_of(self, params: Params, config: Mapping[str, object]) -> object:
        with entered(self.overrides):
            return model_factory(self.kind)(config, params)

    def _running(self, module: object) -> RunningModel:
        return RunningModel(module, self.kind, self.files.weights, self.overrides)

    @property
    def precision(self) -> str:
        """The precision of products, f32, bf16 or int8; int8 applies only to quantized weights."""
        # Not annotated as `Precision`: with an alias of a Literal, jedi 0.20 completes no attribute
        # of a model.
        return self.backend.precision

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """Run the model once and return its logits.

        An integer array [B, T] of tokens gives f32 [B, T, V], floats [B, channels, H, W], images as
        `image_processor` prepares them, give f32 [B, classes]. A classifier of texts gives
        [B, classes], one of tokens [B, T, classes]. UsageError for an array that is not of the kind
        that the model takes, an unknown token, or more tokens than the context.
        """
        if "image_classifier" in self.capabilities:
            return self.image_classifier().classify(self.checked_inputs(inputs))
        if not self.has_logits:
            self.offering("causal_lm", "has no logits")
        tokens = self.checked_inputs(inputs)
        seen = np.ones(tokens.shape, np.bool_)
        if "text_classifier" in self.capabilities:
            return self.text_classifier().classify_texts(tokens, np.zeros_like(tokens), seen)
        if "token_classifier" in self.capabilities:
            return self.token_classifier().classify_tokens(tokens, seen)
        if "masked_lm" in self.capabilities:
            flat = self.masked_lm().predict_tokens(tokens, seen, np.arange(tokens.size))
            return flat.reshape(*tokens.shape, -1)
        return self.causal_lm().forward(tokens)

    def hidden_states(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Run the model once and return its hidden states, by name and in the order of computation.

        Takes the inputs of `forward`; a text embedder takes tokens, too. Names follow transformers'
        `hidden_states`: `embeddings`, `layer.0`, `layer.1`, ... UsageError as in `forward`,
        ModelError for a model without the capability `hidden_states`.
        """
        shown = cast("HiddenStates", self.offering("hidden_states", "shows no hidden states"))
        return shown.hidden_states(self.checked_inputs(inputs))

    def named_modules(self) -> dict[str, Module]:
        """Return the modules of the model by dotted name, parents first; may be empty."""
        walk = cast("object", getattr(self.module, "named_modules", None))
        return dict(cast("Callable[[], Iterator[tuple[str, Module]]]", walk)()) if walk else {}

    def computation(self) -> Computation:
        """Return the computation of the model, for other formats; ModelError if it defines none."""
        made = cast("object", getattr(self.module, "computation", None))
        if not callable(made):
            raise ModelError(f"`{self.kind}` models do not say what they compute as one function")
        return cast("Callable[[], Computation]", made)()

    def checked_inputs(self, inputs: np.ndarray) -> np.ndarray:
        """Return images as f32, tokens as si64; UsageError if the model does not take the array."""
        array = np.asarray(inputs)
        # All processes of a mesh must run the same input, or their collective operations would wait
        # for each other with different shapes.
        self.backend.agree(lambda: {"input": f"{array.dtype}{array.shape} {array.tobytes().hex()}"})
        if self.takes_images:
            require_images(array, self.kind, self.image_reader().channels)
            return array.astype(np.float32, copy=False)
        reader = self.token_reader()
        if array.ndim != 2 or array.dtype.kind not in "iu" or 0 in array.shape:
            raise UsageError(
                f"a `{self.kind}` model takes an integer array [B, T] of tokens,"
                f" got {array.dtype}{list(array.shape)}"
            )
        if array.shape[1] > reader.context_length:
            raise UsageError(
                f"{array.shape[1]} tokens exceed the context of {reader.context_length} tokens"
            )
        require_known_tokens(array, reader.vocab_size)
        return array.astype(np.int64)

    @property
    def image_processor(self) -> ImageProcessor:
        """Return the processor of images; ModelError for unsupported settings or no images."""
        if self._image_processor is None:
            default = self.image_reader().processor
            self._image_processor = image_settings.image_processor_of(self.files, default)
        return self._image_processor

    @property
    def tokenizer(self) -> TextTokenizer:
        """The tokenizer next to the weights; ModelError if there is none."""
        # An adapter does not change the tokenizer, and reading one takes a while.
        if self.base is not None:
            return self.base.tokenizer
        if self._tokenizer is None:
            with span("read tokenizer"):
                self._tokenizer = tokenizer_of(self.files, self.name)
        return self._tokenizer

    @cached_property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer.json; checked on first use."""
        return self.files.has_file(TOKENIZER)

    @property
    def eos_tokens(self) -> frozenset[int]:
        """The tokens that end a text: of generation_config.json, else of config.json."""
        return frozenset(stated_tokens("eos_token_id", self.generation_config, self.config))

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text, if the model has one."""
        tokens = stated_tokens("bos_token_id", self.generation_config, self.config)
        return tokens[0] if tokens else None

    def draft_head(self) -> DraftHead | None:
        """Return the model's own head for multi-token prediction; None if it has none.

        Its weights are read at the first use.
        """
        return self._own_head

    @cached_property
    def _own_head(self) -> DraftHead | None:
        make = cast("object", getattr(self.causal_lm(), "draft_head", None))
        if self._params is None or not callable(make):
            return None
        head = cast("Callable[[Params], DraftHead | None]", make)(self._params)
        return None if head is None else cast("DraftHead", self._running(head))

    def head_for(self, model: LoadedModel) -> DraftHead:
        """Return this draft head beside `model`; ModelError if it is not made for it."""
        known = self._heads.get(model)
        if known is None:
            source = cast("DraftHeadSource", self.offering(HEAD, "is not a draft head"))
            made = source.head_for(model.causal_lm())
            known = self._heads[model] = cast("DraftHead", self._running(made))
        return known

    def parameters(self) -> dict[str, StoredTensor]:
        """Return the tensors of the checkpoint by name; nothing is read until `numpy()` is."""
        source = self.weights
        return {name: StoredTensor(name, source.type_of(name), source) for name in source.names()}

    def prompt_tokens(self, prompt: Prompt, most: int | None = None) -> Sequence[int]:
        """Return the tokens of a prompt; an empty one becomes the token that begins a text.

        ContextLengthError, before it is tokenized, for a text of more than `most` tokens if its
        length alone says so.

        The chat template of the model renders messages; if it reads images, parts may be images,
        see `conversation_tokens`. UsageError for an invalid prompt, an empty one if the model has
        no begin-of-text token, and unknown tokens; ModelError for messages if the model has no chat
        template, or one that refuses them.
        """
        # Already checked: its placeholders are no tokens of the vocabulary.
        if isinstance(prompt, PicturedTokens):
            return prompt
        tokens = self._tokens_of(checked_prompt(prompt), most)
        if isinstance(tokens, PicturedTokens):
            return tokens
        if not tokens and self.bos_token is not None:
            tokens = [self.bos_token]
        if not tokens:
            raise UsageError("the prompt is empty and the model has no token to begin with")
        require_known_tokens(tokens, self.token_reader().vocab_size)
        return tokens

    def conversation_tokens(
        self, conversation: Conversation | Sequence[Message], most: int | None = None
    ) -> Sequence[int]:
        """Return the tokens of a conversation, as the chat template of the model renders it.

        For models with `image_lm` parts of messages may be `{"type": "image", "image": ...}` with
        the `Path` of a file, a `data:` URL or ui8 [H, W, 3]; or `image_url` as OpenAI has it, with
        such a URL. Raises the errors of `ChatTemplate.render`; ModelError for images that the model
        does not read.
        """
        given = conversation
        if not isinstance(given, Conversation):
            given = Conversation(given)
        if "image_lm" not in self.capabilities or self.base is not None:
            return self.all_conversation_tokens([given], most)[0]
        template = self.chat_template(with_tools=given.tools is not None)

        def render(plain: Sequence[Message]) -> str:
            return template.render(given.with_messages(plain))

        return image_prompts.pictured_prompt(
            self.image_lm(), self._tiling_processor, render, self.tokenizer, given.messages
        )

    def all_conversation_tokens(
        self, conversations: Sequence[Conversation], most: int | None = None
    ) -> list[list[int]]:
        """Return the tokens of conversations without images, rendered together.

        Errors as of `conversation_tokens`; a ChatTemplateError says which one is refused.
        """
        texts: dict[int, str] = {}
        # Some models have a template of their own for tools; each renders all its conversations at
        # once.
        for with_tools in (False, True):
            own = [n for n, each in enumerate(conversations) if bool(each.tools) == with_tools]
            for number in own:
                image_prompts.require_no_images(conversations[number].messages, self.name)
                if most is not None:
                    # Before rendering, which takes seconds for 100,000 messages.
                    text = least_text(conversations[number].messages)
                    self.tokenizer.require_fitting(text, most)
            if own:
                template = self.chat_template(with_tools=with_tools)
                try:
                    found = template.render_all([conversations[number] for number in own])
                except chat_templates.ChatTemplateError as error:
                    if error.conversation is not None:
                        error.conversation = own[error.conversation]
                    raise
                texts.update(zip(own, found, strict=True))
        if most is not None:
            for text in texts.values():
                self.tokenizer.require_fitting(text, most)
        encode = self.tokenizer.encode
        return [encode(texts[number], special=False) for number in range(len(conversations))]

    def _tiling_processor(self) -> TilingProcessor:
        """Return the processor that cuts images into pictures; ModelError if their size is not the
        model's."""
        found, size = image_settings.tiling_processor_of(self.files), self.image_lm().picture_size
        if found.side != size:
            raise ModelError(
                f"images of `{self.name}` become pictures of {found.side} pixels, and it reads"
                f" those of {size}",
                hint="`max_image_size` of its image processor must be `image_size` of its config",
            )
        return found

    def _tokens_of(self, prompt: str | list[int] | Conversation, most: int | None) -> Sequence[int]:
        if isinstance(prompt, Conversation):
            return self.conversation_tokens(prompt, most)
        if not isinstance(prompt, str):
            return prompt
        if most is not None:
            # Before encoding, whose time and memory grow with the text: a server gets texts of any
            # length.
            self.tokenizer.require_fitting(prompt, most)
        return self.tokenizer.encode(prompt)

    def chat_template(self, *, with_tools: bool = False) -> ChatTemplate:
        """Return the chat template with `template_variables`; with `tools`, the one for tools if
        there are several.

        Its files are read once. ModelError if there is none, or if the model does not generate
        text.
        """
        if "seq2seq" not in self.capabilities:
            self.causal_lm()
        found = self._templates.get(with_tools)
        if found is None:
            found = chat_templates.chat_template_of(self.files, self.name, with_tools=with_tools)
            self._templates[with_tools] = found
        return replace(found, variables=dict(self.template_variables))


def stated_tokens(name: str, *settings: Mapping[str, object]) -> list[int]:
    """Return the tokens of the first settings that state `name`; ModelError for anything else."""
    value = next((each[name] for each in settings if each.get(name) is not None), None)
    if value is None:
        return []
    tokens = cast("list[object]", value) if isinstance(value, list) else [value]
    # `true` is an integer in Python, and would be the token 1.
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        found = shown_value(cast("object", value))
        raise ModelError(f"`{name}` must be a token or a list of tokens, got {found}")
    return cast("list[int]", tokens)


def _last(name: str) -> str:
    """Return the name of a model without its owner or folder, its revision and its ending."""
    parts = name.replace("\\", "/").rstrip("/").split("/")
    # A model in the cache of the hub lies in `models--OWNER--NAME/snapshots/REVISION`.
    cached = len(parts) > _SNAPSHOT and parts[-2] == "snapshots"
    last = parts[-3].rpartition("--")[2] if cached else parts[-1].partition("@")[0]
    return last.lower().removesuffix(".gguf").removesuffix(".gptrs")


_SNAPSHOT: Final = 2
"""The parts of a path after the folder of a model in the cache of the hub."""
_HEADS: Final = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
"""The heads that `task_type` of PEFT means."""
_SCORES: Final = re.compile(r"(.+\.)?(score|classifier(\.out_proj)?)\.weight")


def adapted_config(
    config: Mapping[str, object], adapter: LowRankAdapter | None
) -> Mapping[str, object]:
    """Return the settings of a model with an adapter; an adapter of a classifier brings its head.

    Transformers makes such a head when asked for the task, while the model's settings describe its
    own head. Class names are kept if their number matches.
    """
    head = None if adapter is None else _HEADS.get(str(adapter.task))
    if adapter is None or head is None:
        return config
    counts = [len(a) for name, a in adapter.tensors.items() if _SCORES.fullmatch(name) and a.ndim]
    if not counts:
        return config
    found = config.get("architectures")
    named = str(cast("list[object]", found)[0]) if isinstance(found, list) and found else ""
    body = re.sub(r"(For[A-Z]\w*|(LMHead|DoubleHeads)?Model)$", "", named)
    made: dict[str, object] = {**config, "architectures": [body + head]}
    names = config.get("id2label")
    known = len(cast("Mapping[str, object]", names)) if isinstance(names, Mapping) else None
    if known != counts[-1]:
        made |= {"id2label": {f"{n}": f"LABEL_{n}" for n in range(counts[-1])}}
        made.pop("label2id", None)
        made.pop("num_labels", None)
    return made


def require_adapted(params: Params, adapter: LowRankAdapter, source: ModelSource) -> None:
    """ModelError unless a model that was made of `params` has all layers that `adapter` changes.

    Layers that the checkpoint has and the model never reads are skipped with a warning; one tells
    of an adapter for a model of another name, or of one with other weights.
    """
    name, idle = source.name, params.idle()
    missing = [module for module in params.unadapted() if module not in idle]
    if missing:
        raise ModelError(
            f"the adapter {quoted(str(adapter.path), 200)} changes {listed(missing, 3)}, which are"
            f" not linear layers, tables or tensors of {quoted(name)}",
            hint="take the adapter of this model, or merge it with PEFT",
        )
    base = adapter.base or ""
    if base and _last(base) not in (_last(name), _last(str(source.path))):
        _LOG.warning(
            "the adapter %s says that it was made for %s: is %s the same model?",
            quoted(str(adapter.path), 200),
            quoted(base, 200),
            quoted(name),
        )
    # Only if the names agree: the digest reads all weights once.
    elif adapter.base_digest and adapter.base_digest != weights_digest(source.weights).hex():
        _LOG.warning(
            "the adapter %s was trained on other weights than those of %s",
            quoted(str(adapter.path), 200),
            quoted(name),
        )
    if idle:
        _LOG.warning(
            "the adapter %s changes %s, which %s does not use: skipped",
            quoted(str(adapter.path), 200),
            listed(idle, 3),
            quoted(name),
        )
