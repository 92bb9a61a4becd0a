"""Kinds that read or hear a source and write a text about it: encoder-decoders and speech."""

from gptrs_models import relatives
from gptrs_models.description import kind

T5 = kind("t5", "T5 and Flan-T5, text to text", "t5")
MT5 = kind("mt5", "mT5, text to text in many languages", "t5")
UMT5 = kind("umt5", "UMT5, text to text in many languages", "t5")
BART = kind("bart", "BART, for summaries, and classes of texts", "bart_tasks")
PLBART = kind("plbart", "PLBART, for programs", "bart_tasks")
MBART = kind("mbart", "mBART, for translation", "bart_tasks")
MARIAN = kind("marian", "Marian and OPUS-MT, for translation", "bart_tasks")
PEGASUS = kind("pegasus", "Pegasus, for summaries", "bart_tasks")
M2M_100 = kind("m2m_100", "M2M100 and NLLB, for translation", "bart_tasks")
BLENDERBOT = kind("blenderbot", "Blenderbot, for conversation", "bart_tasks")
WHISPER = kind("whisper", "Whisper, speech to text", "whisper")
MOONSHINE = kind("moonshine", "Moonshine, speech to text", "moonshine")
WAV2VEC2 = kind("wav2vec2", "wav2vec 2.0 with CTC, speech to text", "wav2vec2", relatives.WAV2VEC2)
HUBERT = kind("hubert", "HuBERT with CTC, speech to text", "wav2vec2")
UNISPEECH = kind("unispeech", "UniSpeech with CTC, speech to text", "wav2vec2")
UNISPEECH_SAT = kind("unispeech-sat", "UniSpeech-SAT with CTC, speech to text", "wav2vec2")
