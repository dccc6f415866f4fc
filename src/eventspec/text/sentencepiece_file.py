"""A SentencePiece `tokenizer.model` as a tokenizer, without the sentencepiece package: Llama's kind, BPE with byte fallback.

The file is a protobuf (sentencepiece_model.proto): field 1 of the model holds the pieces (1 text, 2 score, 3 kind), field 2
the trainer's settings (3 algorithm), field 3 the normaliser's (2 character map, 3 dummy prefix, 4 whitespace removal).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from eventspec.core import BadCheckpoint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BPE = 2
Value = int | float | bytes


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its place is its id."""

    text: str
    score: float
    kind: int


def read_pieces(path: Path) -> list[Piece]:
    """The vocabulary of a file; BadCheckpoint when it is damaged or of another kind than Llama's."""
    try:
        return _pieces(path.read_bytes())
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read ({error.strerror}): fetch it again") from None
    except (ValueError, struct.error, TypeError) as error:
        raise BadCheckpoint(f"{path} is not a Llama SentencePiece model ({error}): fetch it again") from None


def tokenizer_of(pieces: list[Piece], legacy: bool, added: list[tuple[str, bool]]) -> Tokenizer:
    """The tokenizer of a vocabulary and of the tokens `added` behind it (text, special).

    legacy: text behind a special token gets a leading space of its own, as text at the beginning does (transformers' `legacy`).
    """
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


def _merges(pieces: list[Piece], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every split of a piece into two others, the best piece first: SentencePiece joins the pair whose piece scores highest."""
    found = []
    for number, piece in enumerate(pieces):
        if piece.kind not in (NORMAL, USER_DEFINED):
            continue
        for cut in range(1, len(piece.text)):
            left, right = piece.text[:cut], piece.text[cut:]
            if left in ids and right in ids:
                found.append((-piece.score, number, -cut, left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def _pieces(data: bytes) -> list[Piece]:
    pieces: list[Piece] = []
    for field, value in _fields(data):
        if field == 1:
            parts = dict(_fields(_bytes(value)))
            kind, score = parts.get(3, NORMAL), parts.get(2, 0.0)
            if not isinstance(kind, int) or not isinstance(score, float):
                raise ValueError(f"piece {len(pieces)} is damaged")
            pieces.append(Piece(_bytes(parts[1]).decode("utf-8") if 1 in parts else "", score, kind))
        elif field == 2 and (kind := dict(_fields(_bytes(value))).get(3, 1)) != BPE:
            raise ValueError(f"its algorithm is number {kind!r}, wanted {BPE}, BPE")
        elif field == 3:
            rules = dict(_fields(_bytes(value)))
            if rules.get(2) or rules.get(3, 1) != 1 or rules.get(4, 1) != 0:
                raise ValueError("it normalises text, where Llama's leaves it alone and puts a space before")
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("a piece is there twice")
    return pieces


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of every field of a protobuf message; ValueError when the message ends early."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError(f"damaged at byte {at}")
        raw = data[at : at + size]
        at += size
        yield key >> 3, struct.unpack("<f", raw)[0] if kind == 5 else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"damaged at byte {at}")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
