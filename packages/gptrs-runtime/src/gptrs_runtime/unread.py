"""Weights and settings that the code of a model does not read, except harmless ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from msgspec import Struct

from gptrs.checkpoint.config_fields import ReadSettings
from gptrs.checkpoint.params import Params
from gptrs.errors import GptrsError
from gptrs.plugins.manager import manager
from gptrs.quoting import listed, quoted
from gptrs_runtime.running_model import model_factory
from gptrs_runtime.sources.model_source import ModelSource

_logger = logging.getLogger("gptrs")
_MOST: Final = 6
"""Names that a note lists."""

_COMPUTED: Final = re.compile(
    r"(num_batches_tracked|position_ids|token_type_ids|inv_freq|masked_bias|masked_spec_embed"
    r"|mask_token|embed_positions\.weights?|relative_position_index|relative_coords_table"
    r"|(attn|attention)\.bias|rope_(freqs|factors_(long|short))\.weight)$"
    r"|(^|\.)pooler\."
)
"""Buffers that files of transformers have had, tokens of training, and poolers of encoders."""
_TIED: Final = re.compile(
    r"(^|\.)(lm_head|embed_tokens|shared|decoder|predictions|proj_out|vocab_projector"
    r"|generator_lm_head|embed_out)\.(weight|bias)$"
)
"""Heads and tables of words, which files may have twice."""
_AHEAD: Final = re.compile(r"^(model\.)?mtp(_block|_head)?\.")
"""Layers for multi-token prediction, if they have a separate name."""

_HARMLESS: Final = (
    # Training, and how weights begin.
    r".*(dropout|pdrop|layerdrop|drop_rate|drop_path|drop_connect|loss|jitter|momentum).*"
    r"|.*init(ializer)?_(range|std|factor|value|device|config|scheme|cutoff_factor)"
    r"|init_.*"
    r"|mask_(time|feature)_.*|apply_spec_augment|aux_.*|seq_aux|ep_size|gradient_checkpointing"
    r"|pretraining_tp|tensor_parallel_degree|use_mask_token|num_nextn_predict_layers"
    # Settings of transformers for any model, and about its implementation.
    r"|architectures|auto_map|model_type|transformers_version|(torch_)?dtype|torchscript|_.*"
    r"|name_or_path|tf_legacy_loss|use_bfloat16|pruned_heads|chunk_size_feed_forward"
    r"|is_(encoder_)?decoder|add_cross_attention|cross_attention_hidden_size|tie_.*"
    r"|output_.*|return_.*|use_cache|cache_implementation|.*attn_impl(ementation)?|use_flash.*"
    r"|(scale_)?attention_softmax_in_fp32|reorder_and_upcast_attn|slow_but_exact|fused_.*"
    r"|quantization(_config)?|compression_config|tokenizer_class|processor_class|language"
    r"|chunk_size"
    # Classes, tasks, and texts: the runtime reads those that it follows.
    r"|id2label|label2id|num_labels|label_.*|problem_type|finetuning_task|task_specific_params"
    r"|.*_token_ids?|.*_token_index|summary_.*|prefix|runtime|sentence_transformers"
    r"|max_length|min_length|do_sample|num_beams|num_beam_groups|num_return_sequences"
    r"|temperature|top_[kp]|typical_p|.*_penalty|(encoder_)?no_repeat_ngram_size|early_stopping"
    r"|bad_words_ids|(begin_)?suppress_tokens|remove_invalid_values"
    # Image and audio settings, if only the language model is loaded; unused parts.
    r"|(vision|visual|image|video|audio|mm|projector|multimodal|pooler|stage)_.*|out_features"
    r"|out_indices|encoder_stride|reshape_hidden_states|apply_layernorm|projection_dim"
    r"|(use_)?auxiliary_.*|pool_scales|tdnn_.*|xvector_.*|adapter_(kernel_size|stride)"
    r"|downsample_.*|alignment_.*|adapter_layer_norm_eps|perceiver_config|spatial_merge_size"
    r"|(classifier_)?proj_size|num_adapter_layers|(proj_)?codevector_.*|num_codevector.*"
    r"|num_(negatives|clusters|ctc_classes)|contrastive_.*|replace_prob|sparse_pred_.*"
    # What other settings say as well, or weights.
    r"|num_feat_extract_layers|num_stages|hidden_dim|layerscale_value|pos_embed_rescale"
    r"|attention_types|dense_act_fn|is_gated_act|full_attn_idxs|block_(ffn_dim_multip.*|multip.*)"
    r"|n_ctx|qk_head_dim|share_encoder_decoder_embeddings|sliding_window_pattern|norm_type"
    r"|sinusoidal_pos_embds|embedding_fraction|learned_pos_emb|pad_head_dim_to_multiple_of|median_filter_width"
    r"|time_step_(floor|max|min|rank|scale)|residual_in_fp32|use_associative_scan"
    r"|global_attn_every_n_layers|original_max_position_embeddings"
)
"""Settings of config.json that change nothing where no code looks at them."""
_MOST_HAVE: Final = frozenset(
    (
        *("add_cross_attention", "architectures", "attention_dropout", "attn_pdrop"),
        *("attention_probs_dropout_prob", "bos_token_id", "dtype", "embd_pdrop", "eos_token_id"),
        *("gradient_checkpointing", "hidden_dropout_prob", "initializer_range", "model_type"),
        *("pad_token_id", "pretraining_tp", "reorder_and_upcast_attn", "resid_pdrop"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj", "tie_word_embeddings", "torch_dtype"),
        *("transformers_version", "use_cache"),
    )
)
"""The most common of these, checked first: compiling the expression takes 25 ms."""


class Unread(Struct, frozen=True):
    """Names of unread parts: `weights`, weights of multi-token prediction layers (`ahead`),
    `settings`.
    """

    weights: Sequence[str]
    ahead: Sequence[str]
    settings: Sequence[str]

    def tell(self, name: str) -> None:
        """Log one line for each kind, about the model `name`."""
        if self.ahead:
            _logger.info(
                "%d tensors of %s are for guessing further tokens: only --mtp may read them",
                len(self.ahead),
                quoted(name),
            )
        if self.weights:
            _logger.warning(
                "no layer of %s reads %s of its weights: %s",
                quoted(name), len(self.weights), listed(self.weights, _MOST),
            )  # fmt: skip
        if self.settings:
            _logger.warning(
                "config.json of %s: %s %s",
                quoted(name),
                listed(self.settings, _MOST),
                "is not known and ignored"
                if len(self.settings) == 1
                else "are not known and ignored",
            )


def unread_in(source: ModelSource) -> Unread | None:
    """Return the unread parts of `source`; constructs the model but reads no weight.

    None if no installed plugin has the kind.
    """
    try:
        factory = model_factory(source.model_type)
        params = Params(source.weights, backend=manager().get_backend(None))
        settings = ReadSettings(source.config)
        factory(settings, params)
    except GptrsError:
        return None
    return unread_of(settings, source.config, params)


def unread_of(settings: ReadSettings, config: Mapping[str, object], params: Params) -> Unread:
    """Return the parts of `settings`, from `config`, and `params` that a constructed model left
    unread.
    """
    weights = [name for name in params.unread() if not _is_known(name)]
    ahead = [name for name in weights if _is_ahead(name, config)]
    guessing = frozenset(ahead)
    unseen = [name for name in settings.unseen() if _has_effect(name, config)]
    return Unread([name for name in weights if name not in guessing], ahead, unseen)


def _is_known(name: str) -> bool:
    return bool(_COMPUTED.search(name) or _TIED.search(name))


def _is_ahead(name: str, config: Mapping[str, object]) -> bool:
    """Return whether a tensor is of a layer behind the last one that guesses further tokens."""
    if _AHEAD.match(name):
        return True
    layers, more = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    found = re.match(r"^model\.layers\.([0-9]{1,6})\.", name)
    if not (found and isinstance(layers, int) and isinstance(more, int)):
        return False
    return layers <= int(found[1]) < layers + more


def _has_effect(name: str, config: Mapping[str, object]) -> bool:
    """Return whether an unread setting, `NAME` or `TABLE.NAME`, might matter."""
    value: object = config
    for part in (name,) if name in config else name.split("."):
        table = cast("Mapping[str, object]", value if isinstance(value, Mapping) else {})
        value = table.get(part)
    text = config.get("text_config")
    if isinstance(text, Mapping) and name in text:
        return False  # files of several models repeat settings of the text model
    is_off = value is None or value is False or value in ("", [], {})
    return not (is_off or any(map(_is_harmless, name.split("."))))


def _is_harmless(part: str) -> bool:
    return part in _MOST_HAVE or re.fullmatch(_HARMLESS, part) is not None
