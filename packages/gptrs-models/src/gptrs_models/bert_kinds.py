"""The kinds of the BERT family by `model_type`, and the readers of their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gptrs.api import ModelError
from gptrs.api.models import ConfigFields, Params
from gptrs.nn import ACTIVATIONS, MaskedLMModule, TextClassifierModule, TokenClassifierModule
from gptrs_models.bert import Bert, BertConfig, Names, Norm
from gptrs_models.encoder_heads import Heads, Hidden, with_head


class Kind(Struct, frozen=True):
    """A kind: the names of its weights, defaults of transformers, and its differences from BERT.

    `own_names` maps settings to names that differ from BERT's. `segments`: its tokenizers
    distinguish the texts of a pair by token types.
    """

    names: Names
    heads: Heads
    vocab_size: int = 30522
    hidden_size: int = 768
    layers: int = 12
    attention_heads: int = 12
    intermediate_size: int = 3072
    activation: str = "gelu"
    type_vocab_size: int = 2
    segments: bool = False
    own_names: Mapping[str, str] = field(default_factory=dict[str, str])
    switches: Callable[[ConfigFields, BertConfig], BertConfig] = lambda _, config: config


def read_config(settings: Mapping[str, object]) -> BertConfig:
    """Read config.json with transformers' defaults; ModelError names what is unsupported."""
    name = str(settings.get("model_type"))
    kind, fields = KINDS[name], ConfigFields(settings, name)

    def own(setting: str) -> str:
        return kind.own_names.get(setting, setting)

    fields.require("position_embedding_type", "absolute")
    fields.require("is_decoder", False)
    fields.require("add_cross_attention", False)
    fields.require("quantization_config", None)
    width = fields.integer(own("hidden_size"), kind.hidden_size)
    heads = fields.integer(own("num_attention_heads"), kind.attention_heads)
    if width % heads:
        raise ModelError(
            f"`{own('hidden_size')}` ({width}) of a {name} model is not a multiple of"
            f" `{own('num_attention_heads')}` ({heads})"
        )
    layers = fields.layers(own("num_hidden_layers"), kind.layers)
    types = fields.integer("type_vocab_size", 2, minimum=0) if kind.type_vocab_size else 0
    config = BertConfig(
        names=kind.names,
        heads=kind.heads,
        vocab_size=fields.integer("vocab_size", kind.vocab_size),
        hidden_size=width,
        embedding_size=width,
        num_attention_heads=heads,
        intermediate_size=fields.integer(own("intermediate_size"), kind.intermediate_size),
        hidden_act=fields.choice(own("hidden_act"), ACTIVATIONS, kind.activation),
        max_position_embeddings=fields.integer("max_position_embeddings", 512),
        type_vocab_size=types,
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        stored_layers=tuple(f"encoder.layer.{number}" for number in range(layers)),
        segments=types if kind.segments else 1,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
    )
    return kind.switches(fields, config)


def _roberta(fields: ConfigFields, config: BertConfig) -> BertConfig:
    return _counted(fields, config, fields.integer("pad_token_id", 1, minimum=0))


def _counted(fields: ConfigFields, config: BertConfig, padding: int) -> BertConfig:
    """Count positions from the padding token on, which has the row before the first token."""
    if padding + 1 >= config.max_position_embeddings:
        raise fields.error("max_position_embeddings", f"must be above {padding + 1}")
    return replace(config, padding=padding)


def _ernie(fields: ConfigFields, config: BertConfig) -> BertConfig:
    tasks = fields.integer("task_type_vocab_size", 3)
    return replace(config, task_types=tasks if fields.boolean("use_task_id", False) else 0)


def _distilbert(_: ConfigFields, config: BertConfig) -> BertConfig:
    layers = tuple(f"transformer.layer.{i}" for i in range(len(config.stored_layers)))
    return replace(config, stored_layers=layers, layer_norm_eps=1e-12)


def _mpnet(fields: ConfigFields, config: BertConfig) -> BertConfig:
    # transformers allows tables of other sizes, but reads 32 buckets.
    fields.require("relative_attention_num_buckets", 32)
    # Nor does `pad_token_id` count: positions skip token 1.
    return replace(_counted(fields, config, 1), relative_buckets=32)


def _electra(fields: ConfigFields, config: BertConfig) -> BertConfig:
    size = fields.integer("embedding_size", 128)
    project = "embeddings_project" if size != config.hidden_size else None
    return replace(config, embedding_size=size, names=replace(config.names, projection=project))


def _albert(fields: ConfigFields, config: BertConfig) -> BertConfig:
    layers = len(config.stored_layers)
    groups = fields.integer("num_hidden_groups", 1)
    inner = fields.integer("inner_group_num", 1)
    if layers % groups:
        raise fields.error("num_hidden_groups", f"must divide the {layers} layers")
    stored = (
        f"encoder.albert_layer_groups.{layer * groups // layers}.albert_layers.{number}"
        for layer in range(layers)
        for number in range(inner)
    )
    size = fields.integer("embedding_size", 128)
    return replace(config, embedding_size=size, stored_layers=tuple(stored))


DISTILBERT = Names(
    "distilbert", query="attention.q_lin", key="attention.k_lin", value="attention.v_lin",
    output="attention.out_lin", attention_norm="sa_layer_norm", up="ffn.lin1", down="ffn.lin2",
    norm="output_layer_norm",
)  # fmt: skip
MPNET = Names(
    "mpnet", query="attention.attn.q", key="attention.attn.k", value="attention.attn.v",
    output="attention.attn.o", attention_norm="attention.LayerNorm",
)  # fmt: skip
ALBERT = Names(
    "albert", projection="encoder.embedding_hidden_mapping_in", query="attention.query",
    key="attention.key", value="attention.value", output="attention.dense",
    attention_norm="attention.LayerNorm", up="ffn", down="ffn_output",
    norm="full_layer_layer_norm",
)  # fmt: skip
PRELAYERNORM = Names(
    "roberta_prelayernorm", attention_norm="attention.LayerNorm", norm="intermediate.LayerNorm",
    last_norm="LayerNorm",
)  # fmt: skip

POOLER = Hidden("pooler.dense", "tanh", in_body=True)


def _words(scope: str) -> Hidden:
    """Return the layer before the word scores, with the activation of the encoder."""
    return Hidden(f"{scope}.dense", None, f"{scope}.LayerNorm")


BERT_HEADS = Heads(
    POOLER, _words("cls.predictions.transform"), "cls.predictions.decoder", "cls.predictions.bias"
)
ROBERTA_HEADS = Heads(
    Hidden("classifier.dense", "tanh"), Hidden("lm_head.dense", "gelu", "lm_head.layer_norm"),
    "lm_head.decoder", "lm_head.bias", text_out="classifier.out_proj",
)  # fmt: skip
DISTILBERT_HEADS = Heads(
    Hidden("pre_classifier", "relu"), Hidden("vocab_transform", None, "vocab_layer_norm"),
    "vocab_projector",
)  # fmt: skip
ELECTRA_HEADS = Heads(
    Hidden("classifier.dense", "gelu"),
    Hidden("generator_predictions.dense", "gelu", "generator_predictions.LayerNorm"),
    "generator_lm_head", text_out="classifier.out_proj",
)  # fmt: skip
ALBERT_HEADS = Heads(
    Hidden("pooler", "tanh", in_body=True), _words("predictions"), "predictions.decoder",
    "predictions.bias",
)  # fmt: skip

KINDS: dict[str, Kind] = {
    "bert": Kind(Names("bert"), BERT_HEADS, segments=True),
    "roberta": Kind(Names("roberta"), ROBERTA_HEADS, vocab_size=50265, switches=_roberta),
    "roberta-prelayernorm": Kind(PRELAYERNORM, ROBERTA_HEADS, vocab_size=50265, switches=_roberta),
    "xlm-roberta": Kind(Names("roberta"), ROBERTA_HEADS, switches=_roberta),
    "camembert": Kind(Names("roberta"), ROBERTA_HEADS, switches=_roberta),
    "data2vec-text": Kind(Names("data2vec_text"), ROBERTA_HEADS, switches=_roberta),
    "ernie": Kind(Names("ernie"), BERT_HEADS, segments=True, switches=_ernie),
    "distilbert": Kind(
        DISTILBERT, DISTILBERT_HEADS, layers=6, type_vocab_size=0, switches=_distilbert,
        own_names={
            "hidden_size": "dim", "num_attention_heads": "n_heads",
            "num_hidden_layers": "n_layers", "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
    ),
    "mpnet": Kind(MPNET, ROBERTA_HEADS, vocab_size=30527, type_vocab_size=0, switches=_mpnet),
    "electra": Kind(
        Names("electra"), ELECTRA_HEADS, hidden_size=256, attention_heads=4,
        intermediate_size=1024, segments=True, switches=_electra,
    ),
    "albert": Kind(
        ALBERT, ALBERT_HEADS, segments=True, vocab_size=30000, hidden_size=4096,
        attention_heads=64, intermediate_size=16384, activation="gelu_new", switches=_albert,
    ),
}  # fmt: skip
"""The kinds by their `model_type`."""


# Encoders of the BERT family with the head that config.json names.


class TextClassifierBert(TextClassifierModule, Bert):
    """The encoder with a score for each class of a text."""


class TokenClassifierBert(TokenClassifierModule, Bert):
    """The encoder with a score for each class of a token."""


class MaskedBert(MaskedLMModule, Bert):
    """The encoder with a score for each word at masked tokens."""


CLASSES: dict[str | None, type[Bert]] = {
    None: Bert,
    "text": TextClassifierBert,
    "token": TokenClassifierBert,
    "word": MaskedBert,
}
"""The class for each head."""


def load(settings: Mapping[str, object], params: Params) -> Bert:
    """Build the model with the head that `architectures` names, from config.json and weights.

    ModelError if either is unsupported.
    """
    config = read_config(settings)

    def norm(scope: Params, width: int) -> Norm:
        return Norm(config, scope, width)

    return with_head(CLASSES, config, config, settings, params, norm)
