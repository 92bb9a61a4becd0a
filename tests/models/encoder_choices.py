"""Settings of encoders for `test_five_seeds_of_encoders`, of which each draw takes some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from models import test_clip, test_siglip2, test_whisper
from models.seq2seq_models import SMALL, T5
from models.test_rotary_encoders import GEMMA, PROTEINS, TOKENS_OF_MODERNBERT

Settings = Mapping[str, object]
Choices = Sequence[Sequence[Settings]]
"""Groups of settings: of each group one is drawn."""


def each(name: str, *values: object) -> list[Settings]:
    """Return a group with the values of one setting."""
    return [{name: value} for value in values]


WIDTHS: list[Settings] = [
    {"hidden_size": 24, "num_attention_heads": 3},
    {"hidden_size": 20, "num_attention_heads": 2},
    {"hidden_size": 30, "num_attention_heads": 5},
]
LAYERS: Choices = [
    each("num_hidden_layers", 1, 2, 3),
    each("intermediate_size", 36, 17, 40),
]
NORMS = each("layer_norm_eps", 1e-12, 1e-5, 1e-2)
ACTIVATIONS = ("gelu", "relu", "gelu_new", "silu")
BERT: Choices = [*LAYERS, WIDTHS, NORMS, each("hidden_act", *ACTIVATIONS)]
TYPES = each("type_vocab_size", 1, 2)
UNTOLD = each("type_vocab_size", 1, 3)
"""Types of kinds whose tokenizers do not tell the texts of a pair apart."""
PADDING = each("pad_token_id", 1, 3)
UNTIED = each("tie_word_embeddings", True, False)
BIASES: Choices = [each("attention_bias", False, True), each("mlp_bias", False, True)]
ROPES = [
    *each("rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
    *each("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 1.7}),
]
TEXTS: dict[str, Choices] = {
    "Bert": [*BERT, TYPES, UNTIED],
    "Roberta": [*BERT, UNTOLD, PADDING],
    "RobertaPreLayerNorm": [*BERT, UNTOLD, PADDING, UNTIED],
    "XLMRoberta": [*BERT, UNTOLD, PADDING],
    "Camembert": [*BERT, UNTOLD, PADDING],
    "Data2VecText": [*BERT, UNTOLD, PADDING],
    "Ernie": [*BERT, TYPES, each("use_task_id", False, True)],
    "DistilBert": [
        [{"dim": 24, "n_heads": 3}, {"dim": 30, "n_heads": 5}],
        each("n_layers", 1, 3),
        each("hidden_dim", 36, 17),
        each("activation", "gelu", "relu"),
        each("sinusoidal_pos_embds", False, True),
    ],
    "MPNet": BERT,
    "Electra": [*BERT, each("embedding_size", 18, 24), TYPES],
    "Albert": [
        *BERT,
        each("embedding_size", 18, 24),
        [
            {},
            {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
            {"num_hidden_layers": 3, "inner_group_num": 2},
        ],
    ],
    "ModernBert": [
        WIDTHS[:2],
        *LAYERS,
        *BIASES,
        [TOKENS_OF_MODERNBERT],
        each("local_attention", 6, 9, 16),
        each("global_attn_every_n_layers", 1, 2, 3),
        each("norm_bias", False, True),
        each("classifier_pooling", "cls", "mean"),
        each("classifier_bias", False, True),
        each("hidden_activation", "gelu", "silu"),
    ],
    "NomicBert": [WIDTHS[:2], *LAYERS, TYPES, each("hidden_act", "silu", "gelu")],
    "Gte": [WIDTHS[:2], *LAYERS, each("type_vocab_size", 0, 1, 2), ROPES, NORMS],
    "JinaEmbeddingsV3": [WIDTHS[:2], *LAYERS, each("type_vocab_size", 1, 2), ROPES, NORMS],
    "Esm": [
        WIDTHS[:2],
        *LAYERS,
        NORMS[1:],
        [PROTEINS],
        each("token_dropout", False, True),
        each("emb_layer_norm_before", False, True),
    ],
    "EuroBert": [
        *LAYERS,
        *BIASES,
        ROPES,
        UNTIED,
        [{"mask_token_id": 3}],
        [
            {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2},
            {"hidden_size": 30, "num_attention_heads": 3, "head_dim": 14},
        ],
        each("classifier_pooling", "bos", "mean", "late"),
    ],
    "Gemma3Text": [
        *LAYERS,
        *BIASES[:1],
        [{**GEMMA, "hidden_size": 24}],
        each("sliding_window", 5, 10),
        each("sliding_window_pattern", 1, 2),
        each("query_pre_attn_scalar", 20, 7),
        each("head_dim", 8, 12),
    ],
    "Deberta": [
        *BERT,
        [
            {"relative_attention": False},
            {"relative_attention": True, "pos_att_type": ["c2p"]},
            {"relative_attention": True, "pos_att_type": "p2c|c2p", "max_relative_positions": 12},
            {"relative_attention": True, "pos_att_type": ["p2c"], "max_relative_positions": 7},
        ],
        each("position_biased_input", True, False),
        each("type_vocab_size", 0, 2),
        each("legacy", True, False),
    ],
    "DebertaV2": [
        *BERT,
        [
            {"relative_attention": False},
            {"relative_attention": True, "pos_att_type": ["c2p"], "position_buckets": 8},
            {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
            {"relative_attention": True, "pos_att_type": ["p2c"], "max_relative_positions": 12},
        ],
        each("norm_rel_ebd", "none", "layer_norm"),
        each("position_biased_input", True, False),
        each("type_vocab_size", 0, 2),
        each("conv_kernel_size", 0, 3),
        each("legacy", True, False),
    ],
}
"""Kinds of encoders of texts in transformers."""
EMBEDDERS: dict[str, Choices] = {
    "Qwen3": [
        *LAYERS,
        BIASES[0],
        ROPES,
        each("head_dim", 8, 10),
        each("num_key_value_heads", 1, 2),
        each("tie_word_embeddings", True, False),
        [{}, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}],
    ],
}
"""Language models that embed texts, such as Qwen3-Embedding."""

PATCHES: Choices = [
    WIDTHS,
    *LAYERS,
    NORMS,
    each("hidden_act", *ACTIVATIONS),
    each("qkv_bias", True, False),
    [{"image_size": 20, "patch_size": 6}, {"image_size": 21, "patch_size": 7}],
]
OF_BEIT: Choices = [
    *PATCHES[:-2],
    PATCHES[-1],
    each("use_absolute_position_embeddings", False, True),
    each("use_relative_position_bias", True, False),
    each("use_shared_relative_position_bias", False, True),
    each("layer_scale_init_value", 0.1, 0.0),
    each("use_mean_pooling", True, False),
]
CLASSIFIERS: dict[str, Choices] = {
    "ViT": PATCHES,
    "DeiT": PATCHES,
    "Dinov2": [
        *PATCHES,
        each("mlp_ratio", 2, 3),
        each("use_swiglu_ffn", False, True),
        each("layerscale_value", 1.0, 0.3),
    ],
    "Dinov2WithRegisters": [
        *PATCHES,
        each("mlp_ratio", 2, 3),
        each("use_swiglu_ffn", False, True),
        each("num_register_tokens", 0, 3),
    ],
    "Beit": OF_BEIT,
    "Data2VecVision": OF_BEIT,
    "Swin": [
        [
            {"image_size": 30, "patch_size": 2, "window_size": 4},
            {"image_size": 52, "patch_size": 4, "window_size": 3},
        ],
        [
            {"embed_dim": 8, "depths": [2, 3], "num_heads": [2, 4]},
            {"embed_dim": 12, "depths": [1, 2, 1], "num_heads": [1, 3, 2]},
        ],
        each("mlp_ratio", 1.5, 4.0),
        each("qkv_bias", True, False),
        each("use_absolute_embeddings", False, True),
        each("hidden_act", "gelu", "relu"),
        NORMS,
    ],
    "ConvNext": [
        [
            {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2},
            {"hidden_sizes": [6, 8, 10], "depths": [2, 1, 1], "num_stages": 3},
        ],
        each("hidden_act", *ACTIVATIONS),
        each("layer_scale_init_value", 1e-6, 0.0),
        each("patch_size", 4, 3),
        NORMS,
    ],
    "ConvNextV2": [
        [
            {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2},
            {"hidden_sizes": [6, 8, 10], "depths": [2, 1, 1], "num_stages": 3},
        ],
        each("hidden_act", *ACTIVATIONS),
        each("patch_size", 4, 2),
        NORMS,
    ],
    "Bit": [
        [{"embedding_size": 8, "hidden_sizes": [16, 40], "depths": [2, 1], "num_groups": 4}],
        each("layer_type", "preactivation", "bottleneck"),
        each("global_padding", None, "same"),
        each("output_stride", 32, 8),
        each("embedding_dynamic_padding", False, True),
        each("hidden_act", "relu", "silu"),
    ],
}
"""Kinds of classifiers of images with parameters drawn alike."""
CONVOLUTIONAL: dict[str, Choices] = {
    "ResNet": [
        [
            {"hidden_sizes": [8, 12], "depths": [1, 2], "embedding_size": 8},
            {"hidden_sizes": [16, 24, 32], "depths": [2, 1, 1], "embedding_size": 6},
        ],
        each("layer_type", "basic", "bottleneck"),
        each("downsample_in_first_stage", False, True),
        each("downsample_in_bottleneck", False, True),
        each("hidden_act", "relu", "gelu"),
        each("num_channels", 3, 1),
    ],
    "RegNet": [
        [{"embedding_size": 12, "hidden_sizes": [16, 24, 32], "depths": [1, 2, 1]}],
        each("groups_width", 8, 4),
        each("layer_type", "y", "x"),
        each("hidden_act", "relu", "silu"),
        each("downsample_in_first_stage", True, False),
    ],
    "MobileNetV1": [
        each("depth_multiplier", 0.3, 0.26),
        each("tf_padding", True, False),
        each("hidden_act", "relu6", "relu"),
        each("min_depth", 8, 5),
    ],
    "MobileNetV2": [
        [{"depth_divisible_by": 4, "min_depth": 4}],
        each("depth_multiplier", 0.25, 0.35),
        each("expand_ratio", 1, 2, 3),
        each("tf_padding", True, False),
        each("output_stride", 32, 16, 8),
        each("first_layer_is_expansion", True, False),
        each("finegrained_output", True, False),
        each("hidden_act", "relu6", "silu"),
    ],
    "EfficientNet": [
        [
            {
                **{"in_channels": [32, 16, 24], "out_channels": [16, 24, 40]},
                **{"num_block_repeats": [1, 2, 1], "expand_ratios": [1, 6, 4]},
            }
        ],
        [
            {"width_coefficient": 0.6, "depth_coefficient": 1.1, "hidden_dim": 768},
            {"width_coefficient": 0.3, "depth_coefficient": 0.4, "hidden_dim": 384},
        ],
        each("kernel_sizes", [3, 5, 3], [5, 3, 3]),
        each("strides", [1, 2, 2], [2, 1, 2]),
        each("depthwise_padding", [], [2], [0, 1]),
        each("hidden_act", "swish", "relu"),
        each("squeeze_expansion_ratio", 0.25, 0.5),
    ],
}
"""Kinds of classifiers of images with batch norms."""
BODIES: dict[str, Choices] = {
    "DINOv3ViT": [
        [WIDTHS[0], {"hidden_size": 32, "num_attention_heads": 2}],
        *LAYERS,
        [{"image_size": 20, "patch_size": 6}],
        each("num_register_tokens", 0, 3),
        each("use_gated_mlp", False, True),
        each("hidden_act", "gelu", "silu"),
        each("rope_theta", 50.0, 100.0),
        each("key_bias", False, True),
        each("proj_bias", True, False),
        each("mlp_bias", True, False),
    ],
    "Swin": CLASSIFIERS["Swin"],
    "Beit": CLASSIFIERS["Beit"],
    "Data2VecVision": CLASSIFIERS["Data2VecVision"],
}
"""Kinds of encoders of images."""
PAIRS: dict[str, Choices] = {
    "CLIP": [
        each("projection_dim", 10, 16),
        each("text_config", test_clip.TEXT, {**test_clip.TEXT, "eos_token_id": 2}),
        each("vision_config", test_clip.VISION, {**test_clip.VISION, "hidden_act": "gelu"}),
    ],
    "Siglip": [
        each("text_config", test_clip.WIDE, {**test_clip.WIDE, "hidden_act": "relu"}),
        each("vision_config", test_clip.VISION, {**test_clip.VISION, "layer_norm_eps": 1e-3}),
    ],
    "Siglip2": [
        each("text_config", test_siglip2.TEXT),
        each("vision_config", test_siglip2.VISION, {**test_siglip2.VISION, "hidden_act": "gelu"}),
    ],
}
"""Kinds with images and texts in one space."""
OTHER_HEADS = [{}, {"encoder_attention_heads": 4, "decoder_attention_heads": 2}]
OF_BART: Choices = [
    [SMALL],
    OTHER_HEADS,
    each("encoder_layers", 1, 3),
    each("scale_embedding", False, True),
    each("activation_function", *ACTIVATIONS),
]
SOURCES: dict[str, Choices] = {
    "T5ForConditionalGeneration": [
        [T5],
        each("feed_forward_proj", "relu", "gated-gelu", "gated-silu"),
        UNTIED,
        each("relative_attention_max_distance", 25, 12),
        each("num_layers", 1, 3),
    ],
    "UMT5ForConditionalGeneration": [[T5], each("feed_forward_proj", "relu", "gated-gelu")],
    "BartForConditionalGeneration": OF_BART,
    "MarianMTModel": [*OF_BART, [{"decoder_start_token_id": 60, "pad_token_id": 60}]],
    "PegasusForConditionalGeneration": OF_BART,
    "M2M100ForConditionalGeneration": OF_BART,
    "BlenderbotForConditionalGeneration": OF_BART,
    "MT5ForConditionalGeneration": [[T5], each("feed_forward_proj", "relu", "gated-gelu"), UNTIED],
    "MBartForConditionalGeneration": OF_BART,
    "PLBartForConditionalGeneration": OF_BART,
}
"""Classes of encoder-decoders."""
OF_WHISPER: Choices = [
    [test_whisper.SETTINGS],
    OTHER_HEADS,
    each("encoder_layers", 1, 2),
    each("activation_function", "gelu", "relu"),
    each("scale_embedding", False, True),
    each("num_mel_bins", 80, 12),
]
