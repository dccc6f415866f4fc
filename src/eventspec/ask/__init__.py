"""Asking: one question about one recording, or several; the answer whole, as tokens or as text while it grows."""

from eventspec.ask.context import RecordingContext
from eventspec.ask.generation import Generation, Methods, generate, generation, stream, stream_text
from eventspec.ask.live import Live
from eventspec.ask.live_policy import LiveAnswer, LivePolicy
from eventspec.ask.result import Result

__all__ = [
    "Generation",
    "Live",
    "LiveAnswer",
    "LivePolicy",
    "Methods",
    "RecordingContext",
    "Result",
    "generate",
    "generation",
    "stream",
    "stream_text",
]
