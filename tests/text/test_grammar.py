"""Grammars: the mask of every path allows what the pattern or schema allows, and what cannot be followed is refused."""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eventspec
from eventspec.core import BadInput, Constraint
from eventspec.text import TokenSpace, Vocabulary

pytest.importorskip("llguidance")
END = 2
NANO = Vocabulary.load(Path(eventspec.__file__).parent / "data/pairs/nano/tokenizer.json")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 0, "maximum": 20},
        "kind": {"enum": ["car", "bus", "é"]},
        "far": {"type": "boolean"},
    },
    "required": ["count", "kind"],
    "additionalProperties": False,
}
SPACES = ["".join(some) for size in range(4) for some in itertools.product(" \n", repeat=size)]
NESTED = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2}}, "$ref": "#/$defs/n"}


def walked(constraint: Constraint, rng: random.Random, vocabulary: Vocabulary = NANO, most: int = 200) -> tuple[str, bool]:
    """Any tokens that the masks allow, the end as soon as a coin says so: the text, and whether it ended."""
    state, ids = constraint.start(), list[int]()
    while len(ids) < most:
        allowed = np.flatnonzero(state.mask()).tolist()
        assert allowed, "the grammar is stuck"
        token = END if END in allowed and rng.random() < 0.5 else rng.choice(allowed)
        if token == END:
            return vocabulary.decode(ids).strip(), True
        ids.append(token)
        state = state.after(token)
    return vocabulary.decode(ids).strip(), False


@pytest.mark.parametrize(
    "pattern",
    ["Yes|No", "^Yes$", r"\d{1,3} (car|bus)(es|s)?", "a/b", "é+€?", "x\ny", r"[a-c]{3,8}", "(?i)yes", r"costs \$", r"a\\"],
)
def test_what_the_masks_allow_matches_as_a_whole(pattern: str) -> None:
    constraint, rng = TokenSpace(NANO, END).regex(pattern), random.Random(0)
    for _ in range(30):
        text, ended = walked(constraint, rng)
        assert ended
        assert re.fullmatch(pattern.strip(), text), (pattern, text)


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["object", "text"])
def test_what_the_masks_allow_fits_the_schema(schema: Any) -> None:
    constraint, rng = TokenSpace(NANO, END).json_schema(schema), random.Random(0)
    for _ in range(30):
        text, ended = walked(constraint, rng)
        assert ended
        found = json.loads(text)
        assert {"count", "kind"} <= found.keys() <= {"count", "kind", "far"}
        assert 0 <= found["count"] <= 20
        assert found["kind"] in ("car", "bus", "é")
        assert isinstance(found.get("far", True), bool)
        assert "  " not in text


def test_a_schema_may_refer_to_itself() -> None:
    constraint, rng = TokenSpace(NANO, END).json_schema(NESTED), random.Random(3)
    texts = [text for text, ended in (walked(constraint, rng) for _ in range(30)) if ended]
    assert any("[[" in text.replace(" ", "") for text in texts)
    assert all(isinstance(json.loads(text), list) for text in texts)


def test_every_branch_has_its_own_state() -> None:
    """Walking one branch changes neither its parent nor its siblings."""
    root = TokenSpace(NANO, END).regex("Yes|No|Not").start()
    before = root.mask().copy()
    yes, no = (root.after(NANO.id_of(piece) or 0) for piece in ("Y", "N"))
    assert np.array_equal(root.mask(), before)
    assert not (yes.mask() & no.mask()).any()
    done = no.after(NANO.id_of("o") or 0)
    assert set(np.flatnonzero(done.mask())) == {END, NANO.id_of("t")}
    assert np.flatnonzero(done.after(NANO.id_of("t") or 0).mask()).tolist() == [END]


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(paths=st.lists(st.lists(st.integers(0, 1 << 30), max_size=12), max_size=5))
def test_a_fork_is_a_walk_from_the_start(paths: list[list[int]]) -> None:
    """Whatever other branches were walked before: the mask is a function of the path alone."""
    constraint = TokenSpace(NANO, END).json_schema(SCHEMA)
    shared = {(): constraint.start()}
    for picks in paths:
        path: tuple[int, ...] = ()
        for pick in picks:
            allowed = [token for token in np.flatnonzero(shared[path].mask()).tolist() if token != END]
            if not allowed:
                break
            token = allowed[pick % len(allowed)]
            shared.setdefault((*path, token), shared[path].after(token))
            path = (*path, token)
    for path, state in shared.items():
        anew = constraint.start()
        for token in path:
            anew = anew.after(token)
        assert np.array_equal(anew.mask(), state.mask())


def test_sentencepiece_vocabularies_follow_grammars_too(tmp_path: Path, sentencepiece_model: Any, words: Any) -> None:
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(words[0]))
    vocabulary = Vocabulary.of_folder(tmp_path)
    rng = random.Random(0)
    for _ in range(20):
        text, ended = walked(TokenSpace(vocabulary, END).regex("the (car|é) is [0-9]"), rng, vocabulary)
        assert ended
        assert re.fullmatch("the (car|é) is [0-9]", text)
        text, ended = walked(TokenSpace(vocabulary, END).json_schema(SCHEMA), rng, vocabulary)
        assert json.loads(text)["kind"] in ("car", "bus", "é")


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "is empty"),
        ("^$", "is empty"),
        ("(", "unclosed group"),
        ("a)|(b", "unopened group"),
        ("(?=x)y", "look-around"),
        (r"(a)\1", "backreferences"),
        ("a\\", "within an escape"),
        (r"[^\s\S]", "cannot be used|cannot be followed"),
    ],
)
def test_a_bad_pattern_is_refused_in_one_line(pattern: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        TokenSpace(NANO, END).regex(pattern)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "must be an object or boolean"),
        ("null", "must be an object or boolean"),
        ({"type": "what"}, "Invalid type: what"),
        ({"not": {}}, "Unimplemented keys"),
        ({"$ref": "http://x/y"}, "does not fetch"),
        ({"$ref": "#/nothing"}, "does not exist"),
        ({"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}, "cannot be followed"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"const": object()}, "not valid JSON"),
        ({"const": float("nan")}, "JSON schema cannot be used"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_schema_is_refused_in_one_line(schema: Any, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)) as caught:
        TokenSpace(NANO, END).json_schema(schema)
    assert "\n" not in str(caught.value)


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(pattern=st.text("ab|()[]{}^$\\/*+?.,1- \n\"'#:éx", max_size=12))
def test_any_pattern_is_followed_or_refused(pattern: str) -> None:
    """What stands in a pattern cannot leave it: no slash, quote or line break reaches the grammar around it."""
    try:
        constraint = TokenSpace(NANO, END).regex(pattern)
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    text, ended = walked(constraint, random.Random(0), most=60)
    try:
        known = re.compile(pattern)
    except re.error:  # Rust knows more
        return
    if ended and not re.search(r"[\[\\^$]|\+\+|\?\+|\*\+|\}\+", pattern):  # where both languages mean the same
        # The text has no space around it, whatever the pattern says.
        assert any(known.fullmatch(f"{before}{text}{behind}") for before in SPACES for behind in SPACES), pattern


def test_a_grammar_that_grows_too_large_is_told_where_it_does() -> None:
    with pytest.raises(BadInput, match="the grammar cannot be followed"):
        walked(TokenSpace(NANO, END).regex("a{99999}"), random.Random(0))


def test_a_tokenizer_that_cannot_spell_is_refused(saved: Any) -> None:
    with pytest.raises(BadInput, match="this tokenizer cannot follow a grammar"):
        TokenSpace(Vocabulary.load(saved("<unk>", "a", "</s>")), END).regex("a")


def test_without_the_extra_the_refusal_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for ask in (lambda: TokenSpace(NANO, END).regex("a"), lambda: TokenSpace(NANO, END).json_schema({})):
        with pytest.raises(BadInput, match=r"pip install 'eventspec\[grammar\]'"):
            ask()
