"""JSON, TOML and weights that a user may hand over: a damaged file is read, or refused in one line, by every reader."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventspec.align.acceptance import Calibrated
from eventspec.core import EventspecError
from eventspec.costs.store import read as read_costs
from eventspec.drafters.mixture import Mixture
from eventspec.drafters.prior import TextPrior
from eventspec.experiments.measures import known
from eventspec.experiments.rows import RowFile
from eventspec.models.eventgpt import open_eventgpt
from eventspec.models.video_llava import open_video_llava
from eventspec.pairs.pair_file import NAME, PairFile
from eventspec.recordings.layout import records
from eventspec.recordings.native import read_native
from eventspec.recordings.qa import read_questions
from eventspec.text import Vocabulary

Reader = Callable[[Path], object]
ODD = (
    None,
    True,
    -1,
    0,
    1.5,
    1e999,
    float("nan"),
    10**30,
    1 << 62,
    "",
    "\0",
    "\ud800",
    "/",
    [],
    {},
    [[]],
    [None],
    {"": 0},
    "x" * 9,
)
CLIP = Path(__file__).parents[2] / "src/eventspec/data/clips/street_scene"
PAIR = """format = "eventspec-pair"
version = 1
name = "mine"
trained_on = "scene "
[files]
target = "elsewhere"
[heads]
eagle = "heads/eagle"
[adapters]
"an adapter" = "adapters/mlp"
"""


def written(name: str, text: str, read: Reader) -> tuple[str, bytes, Reader]:
    return name, text.encode(), read


ROW = {"recording": "clip", "question": "What?", "answer": "A car.", "kind": "caption"}
TEXTS = [
    written(
        "prior.json",
        json.dumps({"longest": 2, "contexts": [["q", [1, 2], [[3, 4]], 5], ["q", [], [[1, 1]], 1]]}),
        TextPrior.load,
    ),
    written("costs.json", json.dumps({"hybrid": {"step_seconds": 0.1, "open_cost": 0.1}}), read_costs),
    written(NAME, PAIR, lambda path: rewritten(path.parent)),
    written("qa.jsonl", json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n", read_questions),
    written("records.json", json.dumps([{"id": "1", "conversations": [{"from": "human", "value": "?"}]}]), records),
    written(
        "rows.jsonl", json.dumps({"method": "eagle", "question_id": "1", "tau": 1.5}) + "\n", lambda path: RowFile(path, True)
    ),
    written("results.json", json.dumps({"identity": {"n": 4, "rows": [1, 2]}}), known),
]


def rewritten(folder: Path) -> None:
    """What was read can be written, and says the same again."""
    found = PairFile.read(folder)
    found.write()
    assert PairFile.read(folder).text == found.text


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut or repeated; or, in JSON, one value replaced by an odd one, or wrapped many times."""
    try:
        content = json.loads(data) if chance.random() < 0.5 else None
    except ValueError:
        content = None
    if content is not None:
        nodes = [([content], 0)]
        for holder, key in nodes:
            if isinstance(value := holder[key], dict | list):
                nodes += [(value, below) for below in (value if isinstance(value, dict) else range(len(value)))]
        holder, key = chance.choice(nodes)
        holder[key] = chance.choice(ODD)
        text = json.dumps(nodes[0][0][0])
        depth = chance.choice((0, 0, 0, 900, 100_000))
        return (text.replace("null", "[" * depth + "]" * depth) if depth else text).encode()
    spoilt = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at, other = chance.randrange(len(spoilt) + 1), chance.randrange(len(spoilt) + 1)
        match chance.randrange(4):
            case 0:
                spoilt[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                spoilt[at:at] = chance.choice(
                    (b"[", b'"', b"\0", b"\\", b"\n", b"-", b"9" * 400, b"[" * 50_000, b"\xff", b"1e400")
                )
            case 2:
                del spoilt[at : at + chance.randrange(1, 9)]
            case _:
                spoilt[at:at] = spoilt[min(at, other) : max(at, other)][:200]
    return bytes(spoilt)


def read_or_refused(path: Path, data: bytes, read: Reader, rounds: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    for number in range(rounds):
        path.write_bytes(bad := spoilt(data, chance))
        try:
            read(path)
        except EventspecError as error:
            assert "Traceback" not in str(error)
        except Exception as error:
            raise AssertionError(f"{path.name}, {number}: {bad[:300]!r}") from error


ROUNDS = [120, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(("name", "data", "read"), TEXTS, ids=[name for name, *_ in TEXTS])
def test_a_damaged_text_is_read_or_refused(tmp_path: Path, name: str, data: bytes, read: Reader, rounds: int) -> None:
    (tmp_path / "clip").mkdir()
    read_or_refused(tmp_path / name, data, read, rounds)


@pytest.mark.parametrize("rounds", [60, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_checkpoint_is_read_or_refused(tmp_path: Path, folders: Any, name: str, rounds: int) -> None:
    folder = shutil.copytree(folders.video_llava, tmp_path / "target")
    read: Reader = Vocabulary.load if name == "tokenizer.json" else lambda path: open_video_llava(path.parent)
    read_or_refused(folder / name, (folder / name).read_bytes()[: 1 << 16], read, rounds)
    if name == "config.json":
        folder = shutil.copytree(folders.eventgpt.parent, tmp_path / "eventgpt") / folders.eventgpt.name
        read_or_refused(folder / name, (folder / name).read_bytes(), lambda path: open_eventgpt(path.parent), rounds // 2)


@pytest.mark.parametrize("rounds", [40, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_a_damaged_recording_toml_is_read_or_refused(tmp_path: Path, rounds: int) -> None:
    folder = shutil.copytree(CLIP, tmp_path / "clip")
    read_or_refused(
        folder / "recording.toml", (folder / "recording.toml").read_bytes(), lambda path: read_native(path.parent), rounds
    )


@pytest.mark.parametrize(
    "read", [TextPrior.load, Mixture.load, Calibrated.load, records, known, read_questions], ids=lambda read: read.__qualname__
)
def test_a_text_that_is_nested_too_deeply_is_refused(tmp_path: Path, read: Reader) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(EventspecError) as refused:
        read(path)
    assert "\n" not in str(refused.value)
    (tmp_path / NAME).write_text("a = " + "[" * 100_000)
    with pytest.raises(EventspecError, match="nested too deeply"):
        PairFile.read(tmp_path)


@pytest.mark.parametrize("odd", ['a "quoted" one', "back\\slash", "two\nlines", "tab\t, DEL \x7f, é, 日本", "", "'", "#"])
def test_a_pair_of_any_name_opens_again(tmp_path: Path, odd: str) -> None:
    made = PairFile(tmp_path, odd, trained_on=odd).listing("heads", odd, odd).listing("adapters", "plain", "/elsewhere/adapter")
    made.write()
    found = PairFile.read(tmp_path)
    assert (found.name, found.trained_on, dict(found.tables["heads"])) == (odd, odd, {odd: odd})
    assert found.places("adapters") == {"plain": Path("/elsewhere/adapter")}, "an absolute place is what it says"
    assert found.text == made.text
