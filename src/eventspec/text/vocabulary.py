"""A tokenizer as the engine's rooms need it: text to ids and back, what each id spells, and whether two share their ids."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from eventspec.core import BadCheckpoint
from eventspec.files import read_json
from eventspec.text.sentencepiece_file import read_pieces, tokenizer_of

JSON_NAME, PIECES_NAME = "tokenizer.json", "tokenizer.model"


class Vocabulary:
    """A `tokenizer.json`, or a SentencePiece `tokenizer.model`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """A tokenizer.json; BadCheckpoint when the file is missing or no tokenizer."""
        if not path.is_file():
            raise BadCheckpoint(f"{path} is missing: the folder is not a complete checkpoint")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:
            raise BadCheckpoint(f"{path} is not a tokenizer ({error}): fetch or train it again") from None

    @classmethod
    def of_folder(cls, folder: Path, first: str = JSON_NAME) -> Vocabulary:
        """The tokenizer of a checkpoint folder; where it has both kinds of file, the one named `first`."""
        names = sorted((JSON_NAME, PIECES_NAME), key=lambda name: name != first)
        found = [name for name in names if (folder / name).is_file()]
        if not found:
            raise BadCheckpoint(f"{folder / names[0]} is missing, and so is {names[1]}: copy the tokenizer there")
        if found[0] == JSON_NAME:
            return cls.load(folder / JSON_NAME)
        settings = _settings(folder / "tokenizer_config.json")
        legacy = settings.get("legacy") is not False  # absent means legacy, as in transformers 4
        pieces = read_pieces(folder / PIECES_NAME)
        return cls(tokenizer_of(pieces, legacy, _added(folder, settings, len(pieces))))

    def with_special(self, tokens: Sequence[str]) -> Vocabulary:
        """The same with these special tokens after it; those it has already keep their ids."""
        if not tokens:
            return self
        grown = Tokenizer.from_str(self._tokenizer.to_str())
        grown.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
        return Vocabulary(grown)

    def encode(self, text: str) -> list[int]:
        """Ids without any special token added; special tokens written in the text are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text, as a rule without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def spellings(self, text: str) -> tuple[tuple[int, ...], ...]:
        """The ids of a text as this tokenizer writes it: at the beginning, inside a word, and after a space."""
        inside = self._inside.encode
        found = (self.encode(text), *(inside(f"{space}{text}", add_special_tokens=False).ids for space in ("", " ")))
        return tuple(dict.fromkeys(tuple(ids) for ids in found if ids))

    @property
    def size(self) -> int:
        """Number of ids, special tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def text_size(self) -> int:
        """Number of ids before the tokens that were added to the vocabulary."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def id_of(self, piece: str) -> int | None:
        """The id of a piece or special token, or None."""
        found: int | None = self._tokenizer.token_to_id(piece)
        return found

    def piece(self, token: int) -> str | None:
        """The piece at an id, or None."""
        found: str | None = self._tokenizer.id_to_token(token)
        return found

    def as_json(self) -> str:
        """The content of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    def fingerprint(self) -> str:
        """Equal for vocabularies with the same pieces at the same ids."""
        pieces = sorted(self._tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        return hashlib.sha256(repr(pieces).encode()).hexdigest()[:16]

    @cached_property
    def spelling(self) -> list[bytes]:
        """The bytes every id stands for within a text, by id; special tokens and the unknown piece stand for none.
        BadCheckpoint for tokenizers that are neither of SentencePiece's kind nor byte-level BPE."""
        data = json.loads(self._tokenizer.to_str())
        kinds = set(re.findall(r'"type": "(\w+)"', json.dumps(data["decoder"])))
        special = {token["id"] for token in data["added_tokens"] if token["special"]}
        special.add(self._tokenizer.token_to_id(data["model"].get("unk_token") or ""))
        if not kinds & {"ByteLevel", "Metaspace", "Replace"}:
            raise BadCheckpoint(f"a tokenizer with decoder {sorted(kinds)} cannot be re-encoded: share its ids or use another")
        spelled = _from_letters if "ByteLevel" in kinds else _from_piece
        return [b"" if i in special else spelled(self.piece(i) or "") for i in range(self.size)]

    def spell(self, ids: Sequence[int]) -> bytes:
        """Exactly what the ids stand for in the middle of a text: leading spaces are kept, special tokens are nothing."""
        return b"".join(self.spelling[i] for i in ids if i < len(self.spelling))

    def respell(self, data: bytes) -> list[int]:
        """Ids that continue a text with `data`: they spell it, or as long a part from its beginning as this vocabulary can.
        Bytes that are no text (a character's half) become byte tokens where the vocabulary has them."""
        ids: list[int] = []
        for text in re.findall("[\udc80-\udcff]+|[^\udc80-\udcff]+", data.decode("utf-8", "surrogateescape")):
            raw = text.encode("utf-8", "surrogateescape")
            if "\udc80" <= text[0] <= "\udcff":
                found = [self._single[byte] for byte in raw if byte in self._single]
            else:
                found = self._inside.encode(text, add_special_tokens=False).ids
            if self.spell(found) != raw:
                return ids + self._as_far_as(found, raw)
            ids += found
        return ids

    def _as_far_as(self, ids: list[int], data: bytes) -> list[int]:
        at = 0
        for count, token in enumerate(ids):
            part = self.spell([token])
            if not part or not data.startswith(part, at):
                return ids[:count]
            at += len(part)
        return ids

    @cached_property
    def _single(self) -> dict[int, int]:
        """byte -> the id that spells it alone."""
        return {spelled[0]: i for i, spelled in reversed(list(enumerate(self.spelling))) if len(spelled) == 1}

    @cached_property
    def _inside(self) -> Tokenizer:
        """The same tokenizer for the middle of a text: no space is put before it."""
        data = json.loads(self._tokenizer.to_str())
        data["normalizer"] = _without_prefix(data["normalizer"])
        data["pre_tokenizer"] = _without_prefix(data["pre_tokenizer"])
        return Tokenizer.from_str(json.dumps(data))


def first_difference(one: Vocabulary, other: Vocabulary) -> tuple[int, str, str] | None:
    """The first id at which two vocabularies have different text pieces, and both pieces; None when all ids that both have
    mean the same. Tokens that were added after the text pieces do not count: they are never drafted."""
    pairs = ((i, one.piece(i) or "", other.piece(i) or "") for i in range(min(one.text_size, other.text_size)))
    return next((found for found in pairs if found[1] != found[2]), None)


def _settings(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _added(folder: Path, settings: dict[str, Any], size: int) -> list[tuple[str, bool]]:
    """Tokens after the pieces, in order of id, from tokenizer_config.json or added_tokens.json."""
    found: dict[int, tuple[str, bool]] = {}
    try:
        for text, number in _settings(folder / "added_tokens.json").items():
            found[int(number)] = (str(text), True)
        for key, token in settings.get("added_tokens_decoder", {}).items():
            found[int(key)] = (str(token["content"]), bool(token.get("special", True)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"the added tokens cannot be read ({error!r})"
        raise BadCheckpoint(f"{folder}: {problem}: fetch tokenizer_config.json again") from None
    added = sorted(number for number in found if number >= size)
    if added != list(range(size, size + len(added))):
        raise BadCheckpoint(f"{folder}: added token {added[0]} leaves a gap after {size} pieces: fetch the tokenizer again")
    return [found[number] for number in added]


def _without_prefix(node: Any) -> Any:
    """A normaliser or pre-tokenizer that puts no space before a text."""
    if not isinstance(node, dict):
        return node
    if node["type"] == "Prepend":
        return None
    if node["type"] == "Sequence":
        name = "normalizers" if "normalizers" in node else "pretokenizers"
        return {**node, name: [kept for inner in node[name] if (kept := _without_prefix(inner)) is not None]}
    off = {"prepend_scheme": "never", "add_prefix_space": False}
    return {**node, **{name: value for name, value in off.items() if name in node}}


def _from_piece(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes.fromhex(piece[3:5])
    return piece.replace("▁", " ").encode()


def _from_letters(piece: str) -> bytes:
    letters = _byte_letters()
    return bytes(letters[letter] for letter in piece) if all(letter in letters for letter in piece) else b""


@cache
def _byte_letters() -> dict[str, int]:
    """The letters byte-level BPE writes bytes with (Radford et al. 2019): printable ones as themselves, the others from 256."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + place): byte for place, byte in enumerate(others)}}
