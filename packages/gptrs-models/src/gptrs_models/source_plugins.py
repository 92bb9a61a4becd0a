"""The plugins of kinds that read a source, or hear one, and write a text about it."""

from gptrs.api import ModelPlugin

T5 = ModelPlugin(
    name="t5",
    summary="T5 and Flan-T5, text to text",
    factory="gptrs_models.t5:load",
    api="0.1",
)
MT5 = ModelPlugin(
    name="mt5",
    summary="mT5, text to text in many languages",
    factory="gptrs_models.t5:load",
    api="0.1",
)
UMT5 = ModelPlugin(
    name="umt5",
    summary="UMT5, text to text in many languages",
    factory="gptrs_models.t5:load",
    api="0.1",
)
BART = ModelPlugin(
    name="bart",
    summary="BART, for summaries",
    factory="gptrs_models.bart:load",
    api="0.1",
)
PLBART = ModelPlugin(
    name="plbart",
    summary="PLBART, for programs",
    factory="gptrs_models.bart:load",
    api="0.1",
)
MBART = ModelPlugin(
    name="mbart",
    summary="mBART, for translation",
    factory="gptrs_models.bart:load",
    api="0.1",
)
MARIAN = ModelPlugin(
    name="marian",
    summary="Marian and OPUS-MT, for translation",
    factory="gptrs_models.bart:load",
    api="0.1",
)
PEGASUS = ModelPlugin(
    name="pegasus",
    summary="Pegasus, for summaries",
    factory="gptrs_models.bart:load",
    api="0.1",
)
M2M_100 = ModelPlugin(
    name="m2m_100",
    summary="M2M100 and NLLB, for translation",
    factory="gptrs_models.bart:load",
    api="0.1",
)
BLENDERBOT = ModelPlugin(
    name="blenderbot",
    summary="Blenderbot, for conversation",
    factory="gptrs_models.bart:load",
    api="0.1",
)
WHISPER = ModelPlugin(
    name="whisper",
    summary="Whisper, speech to text",
    factory="gptrs_models.whisper:load",
    api="0.1",
)
WAV2VEC2 = ModelPlugin(
    name="wav2vec2",
    summary="wav2vec 2.0 with CTC, speech to text",
    factory="gptrs_models.wav2vec2:load",
    api="0.1",
)
HUBERT = ModelPlugin(
    name="hubert",
    summary="HuBERT with CTC, speech to text",
    factory="gptrs_models.wav2vec2:load",
    api="0.1",
)
