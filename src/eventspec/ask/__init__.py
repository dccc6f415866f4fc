"""Asking: one question about one recording, several, or many at once; the answer whole, as tokens or as text while it grows."""

from eventspec.ask.context import RecordingContext
from eventspec.ask.generation import Generation, Methods, generate, generation, stream, stream_text
from eventspec.ask.live import Live
from eventspec.ask.live_policy import LiveAnswer, LivePolicy
from eventspec.ask.many import Ask, Batch, generate_many
from eventspec.ask.result import Result

__all__ = [
    "Ask",
    "Batch",
    "Generation",
    "Live",
    "LiveAnswer",
    "LivePolicy",
    "Methods",
    "RecordingContext",
    "Result",
    "generate",
    "generate_many",
    "generation",
    "stream",
    "stream_text",
]
