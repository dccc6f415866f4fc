"""A SentencePiece `tokenizer.model` as a tokenizer, without the sentencepiece package: Llama's kind, BPE with byte fallback.

The file is a protobuf (sentencepiece_model.proto): field 1 of the model holds the pieces (1 text, 2 score, 3 kind), field 2
the trainer's settings (3 algorithm), field 3 the normaliser's (2 character map, 3 dummy prefix, 4 whitespace removal).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from eventspec.core import BadCheckpoint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BPE = 2


class VocabularyPiece(NamedTuple):
    """One entry of the vocabulary; its place is its id."""

    text: str
    score: float
    kind: int


def read_pieces(path: Path) -> list[VocabularyPiece]:
    """The vocabulary of a file; BadCheckpoint when it is damaged or of another kind than Llama's."""
    try:
        return _pieces(path.read_bytes())
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read ({error.strerror}): fetch it again") from None
    except (ValueError, struct.error, TypeError) as error:
        raise BadCheckpoint(f"{path} is not a Llama SentencePiece model ({error}): fetch it again") from None


def tokenizer_of(pieces: list[VocabularyPiece], legacy: bool, added: list[tuple[str, bool]]) -> Tokenizer:
    """The tokenizer of a vocabulary and of the tokens `added` after it (text, special). legacy: text after a special token gets
    a leading space, as text at the beginning does (transformers' `legacy`)."""
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    unknown = next((piece.text for piece in pieces if piece.kind == UNKNOWN), None)
    fallback = any(piece.kind == BYTE for piece in pieces)
    bpe = models.BPE(vocab=ids, merges=_merges(pieces, ids), unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    tokenizer = Tokenizer(bpe)
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    spelling = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(spelling)
    special = [piece.text for piece in pieces if piece.kind in (UNKNOWN, CONTROL)]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(piece.text, normalized=False) for piece in pieces if piece.kind == USER_DEFINED])
    for text, is_special in added:
        tokenizer.add_tokens([AddedToken(text, normalized=False, special=is_special)])
    return tokenizer


def _merges(pieces: list[VocabularyPiece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every split of a piece into two others, the best piece first: SentencePiece joins the pair whose piece scores highest."""
    found = [
        (-piece.score, number, -cut, piece.text[:cut], piece.text[cut:])
        for number, piece in enumerate(pieces)
        if piece.kind in (NORMAL, USER_DEFINED)
        for cut in range(1, len(piece.text))
        if piece.text[:cut] in ids and piece.text[cut:] in ids
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def _pieces(data: bytes) -> list[VocabularyPiece]:
    pieces: list[VocabularyPiece] = []
    for field, value in _fields(data):
        if field not in (1, 2, 3):
            continue
        if not isinstance(value, bytes):
            raise ValueError("a field has another type")
        parts = dict(_fields(value))
        if field == 1:
            text, score, kind = parts.get(1, b""), parts.get(2, 0.0), parts.get(3, NORMAL)
            if not (isinstance(text, bytes) and isinstance(score, float) and isinstance(kind, int)):
                raise ValueError(f"piece {len(pieces)} is damaged")
            pieces.append(VocabularyPiece(text.decode("utf-8"), score, kind))
        elif field == 2 and (algorithm := parts.get(3, 1)) != BPE:
            raise ValueError(f"its algorithm is number {algorithm!r}, wanted {BPE}, BPE")
        elif field == 3 and (parts.get(2) or parts.get(3, 1) != 1 or parts.get(4, 1) != 0):
            raise ValueError("it normalises text, where Llama's leaves it alone and puts a space before")
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece is there twice")
    return pieces


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of every field of a protobuf message; ValueError when the message ends early."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        size = {0: 0, 1: 8, 5: 4}.get(kind)
        if kind in (0, 2):
            number, at = _varint(data, at)
            size = number if kind == 2 else 0
        if size is None or at + size > len(data):
            raise ValueError(f"damaged at byte {at}")
        raw = data[at : at + size]
        at += size
        yield key >> 3, number if kind == 0 else struct.unpack("<f", raw)[0] if kind == 5 else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, seven bits each, and the place after it."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"damaged at byte {min(at + 10, len(data))}")
