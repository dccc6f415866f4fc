"""Data sets of questions: rows joined by id or turn by turn, and one line for every shape that is not theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trees
from hypothesis import given, settings
from hypothesis import strategies as st

from eventspec.core import BadInput
from eventspec.recordings import Recording, activitynet_qa, conversations, datasets, eventgpt_json, llava_json, write_native
from eventspec.recordings.qa import read_questions


def refused(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(BadInput) as raised:
        call(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def rewritten(path: Path, change: Callable[[Any], Any]) -> Path:
    """The JSON file with a change; what `change` returns replaces it, None keeps what it changed in place."""
    content = json.loads(path.read_text())
    changed = change(content)
    path.write_text(json.dumps(content if changed is None else changed))
    return path


# ---------------------------------------------------------------------------------------------------------- ActivityNet-QA
def test_questions_and_answers_are_joined_by_id(tmp_path: Path) -> None:
    found = activitynet_qa.questions(trees.activitynet_qa(tmp_path / "qa"))
    told = [(row.recording.name, row.kind, row.answer, row.id) for row in found.rows]
    assert told == [
        ("v_abcdefghijk.mp4", "motion", "answer 0", "v_abcdefghijk_1"),
        ("v_abcdefghijk.mp4", "spatial", "answer 1", "v_abcdefghijk_2"),
        ("v_v_underscor.mp4", "temporal", "answer 2", "v_v_underscor_1"),
        ("v_v_underscor.mp4", "colour", "answer 4", "v_v_underscor_2"),
    ]
    assert found.missing == ("v_-missing-01: no video of this name (test)",)
    assert "videos have no events" in found.notes[0]


def test_recordings_with_simulated_events_may_stand_for_the_videos(tmp_path: Path) -> None:
    root = trees.activitynet_qa(tmp_path / "qa")
    video = Recording.open(root / "all_test/v_abcdefghijk.mp4")
    write_native(tmp_path / "made/v_abcdefghijk", video)
    found = activitynet_qa.questions(root, tmp_path / "made")
    assert {row.recording for row in found.rows} == {tmp_path / "made/v_abcdefghijk"} and found.notes == ()
    assert len(found.missing) == 2


def test_splits_lie_in_the_folder_or_in_dataset(tmp_path: Path) -> None:
    root = trees.activitynet_qa(tmp_path / "qa")
    (root / "dataset").mkdir()
    for letter in "qa":
        shutil.copy(root / f"test_{letter}.json", root / f"dataset/val_{letter}.json")
    (root / "all_test").rename(root / "videos")
    assert [pair.split for pair in activitynet_qa.tables(root)] == ["val", "test"]
    assert len(activitynet_qa.questions(root).rows) == 8
    assert len(activitynet_qa.questions(root, None, "val").rows) == 4
    assert "has no train_q.json: choose one of train, val, test" in refused(activitynet_qa.questions, root, None, "train")


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("q", lambda rows: rows[1].update(video_name=None), "test_q.json: record 1: video_name is None: it must be text"),
        ("q", lambda rows: rows[1].update(question=["what"]), "test_q.json: record 1: question is ['what']"),
        ("q", lambda rows: rows[4].update(question_id="x"), "test_q.json: record 4: question_id 'x' has no answer in test_a"),
        ("q", lambda rows: {"rows": rows}, "test_q.json: is not a JSON list of records"),
        ("q", lambda rows: [*rows, 3], "test_q.json: record 5 is 3, not an object"),
        ("a", lambda rows: rows[0].update(type=9), "test_a.json: record 0: type is 9: it must be a number from 0 to 8"),
        ("a", lambda rows: rows[0].update(type=True), "test_a.json: record 0: type is True"),
        ("a", lambda rows: rows[0].update(answer="  "), "test_a.json: record 0: answer is '  '"),
        ("a", lambda rows: rows.append(rows[0]), "test_a.json: record 5: question_id 'v_v_underscor_2' is there twice"),
    ],
)
def test_tables_of_another_shape_are_refused(tmp_path: Path, file: str, change: Any, told: str) -> None:
    root = trees.activitynet_qa(tmp_path / "qa")
    rewritten(root / f"test_{file}.json", change)
    assert told in refused(activitynet_qa.questions, root)
    assert told in activitynet_qa.inspect(root).wrong[0]


def test_half_a_split_is_refused_and_reported(tmp_path: Path) -> None:
    root = trees.activitynet_qa(tmp_path / "qa")
    (root / "test_a.json").unlink()
    assert "test_a.json: is not there" in refused(activitynet_qa.questions, root)
    assert activitynet_qa.inspect(root).missing == ("test_a.json",)


# ---------------------------------------------------------------------------------------------------------------- EventGPT
def test_every_turn_is_a_question_without_the_mark_of_the_events(tmp_path: Path) -> None:
    found = eventgpt_json.KIND.questions(trees.eventgpt(tmp_path / "data"))
    assert [(row.recording.name, row.kind, row.question, row.answer, row.id) for row in found.rows] == [
        ("000000.npy", "instruction", "What is there?", "A road.", "a"),
        ("000001.npy", "instruction", "What moves?", "A car.", "b/0"),
        ("000001.npy", "follow-up", "Where to?", "To the left.", "b/1"),
    ]
    assert found.missing == ("thun_00_a/000000.npy: no event file of this name (instructions.json)",)
    assert len(Recording.open(found.rows[0].recording).events or ()) == 50


def test_event_files_may_lie_elsewhere(tmp_path: Path) -> None:
    root = trees.eventgpt(tmp_path / "data")
    (root / "event_npy").mkdir()
    (root / "interlaken_00_a").rename(root / "event_npy/interlaken_00_a")
    assert len(eventgpt_json.KIND.questions(root / "instructions.json").rows) == 3
    (root / "event_npy").rename(tmp_path / "far")
    assert eventgpt_json.KIND.questions(root).rows == () and len(eventgpt_json.KIND.questions(root, tmp_path / "far").rows) == 3
    assert "leave --split out" in refused(eventgpt_json.KIND.questions, root, None, "test")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[1].pop("event_data"), "record 1: event_data is None: it must be text"),
        (lambda rows: rows[0].update(event_data="../../x.npy"), "record 0: event_data is '../../x.npy', which leaves"),
        (lambda rows: rows[0].update(event_data="/x.npy"), "record 0: event_data is '/x.npy', which leaves"),
        (lambda rows: rows[0].update(id={"a": 1}), "record 0: id is {'a': 1}"),
        (lambda rows: rows[2].update(conversations="hello"), "record 2: conversations is 'hello': it must be a list of pairs"),
        (lambda rows: rows[2].update(conversations=[]), "record 2: conversations is []"),
        (lambda rows: rows[1]["conversations"].pop(), "record 1: conversations is ["),
        (lambda rows: rows[0]["conversations"].reverse(), "conversations[0] is {'from': 'gpt'"),
        (lambda rows: rows[0]["conversations"][1].update(value=5), "record 0: conversations[1]: value is 5"),
        (lambda rows: rows[0]["conversations"][0].update(value="<event>\n"), "value has nothing but <event>"),
        (lambda rows: rows[0].update(conversations=["hi", "ho"]), "conversations[0] is 'hi': it must be an object"),
    ],
)
def test_conversations_of_another_shape_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    root = trees.eventgpt(tmp_path / "data")
    rewritten(root / "instructions.json", lambda rows: change(rows) and None)
    assert told in refused(eventgpt_json.KIND.questions, root)
    assert told in eventgpt_json.KIND.inspect(root).wrong[0]


# ------------------------------------------------------------------------------------------------------------------- LLaVA
def test_images_and_videos_are_recordings_and_every_turn_is_a_question(tmp_path: Path) -> None:
    found = llava_json.KIND.questions(trees.llava(tmp_path / "data"))
    assert [(row.recording.name, row.kind, row.question, row.answer, row.id) for row in found.rows] == [
        ("000000.png", "instruction", "What is there?", "A road.", "4/0"),
        ("000000.png", "follow-up", "And left?", "A car.", "4/1"),
        ("000001.png", "instruction", "What colour?", "Blue.", "2"),
        ("one.mp4", "instruction", "What moves?", "A square.", "2"),
    ]
    assert found.missing == ("coco/gone.png: no image or video of this name (mix.json)",)
    assert found.notes[:2] == (
        "1 records are about several files: they are left out",
        "1 records are text alone: they are left out",
    )
    assert "have no events" in found.notes[2]
    recordings = [Recording.open(row.recording) for row in found.rows]
    assert [len(recording.video or ()) for recording in recordings] == [1, 1, 1, 4]
    (part,) = llava_json.KIND.inspect(tmp_path / "data").parts
    assert part.facts == {"questions": 4, "files": 3, "of": 4}


def test_images_may_lie_elsewhere_and_text_alone_is_no_data(tmp_path: Path) -> None:
    root = trees.llava(tmp_path / "data")
    (root / "coco").rename(tmp_path / "coco")
    assert len(llava_json.KIND.questions(root).rows) == 1
    assert len(llava_json.KIND.questions(root, tmp_path).rows) == 3
    rewritten(root / "mix.json", lambda rows: rows[-1:])
    assert "1 records are text alone" in refused(datasets.questions_of, root)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: rows[0].update(image="../x.png"), "record 0: image is '../x.png', which leaves the folder"),
        (lambda rows: rows[2].update(video="/x.mp4"), "record 2: video is '/x.mp4', which leaves the folder"),
        (lambda rows: rows[1].update(image=[5]), "record 1: image is [5]: it must be the name of a file, or a list of names"),
        (lambda rows: rows[1].update(image={"bytes": ""}), "record 1: image is {'bytes': ''}"),
        (lambda rows: rows[1].update(image=""), "record 1: image is ''"),
        (lambda rows: rows[0]["conversations"].pop(), "record 0: conversations is ["),
        (lambda rows: rows[0]["conversations"][0].update(value="<image>"), "value has nothing but <image> or <video>"),
    ],
)
def test_instructions_of_another_shape_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    root = trees.llava(tmp_path / "data")
    rewritten(root / "mix.json", lambda rows: change(rows) and None)
    assert told in refused(llava_json.KIND.questions, root)
    assert told in llava_json.KIND.inspect(root).wrong[0]


TEXTS = st.text(min_size=1, max_size=12).filter(lambda text: bool(text.replace("<event>", "").strip()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3), min_size=1, max_size=4))
def test_whatever_is_said_comes_back_turn_by_turn(
    tmp_path_factory: pytest.TempPathFactory, said: list[list[tuple[str, str]]]
) -> None:
    root = tmp_path_factory.mktemp("said")
    (root / "e.npy").touch()
    records = [
        {
            "event_data": "e.npy",
            "conversations": [
                {"from": speaker, "value": text} for turn in turns for speaker, text in zip(("human", "gpt"), turn, strict=True)
            ],
        }
        for turns in said
    ]
    (root / "x.json").write_text(json.dumps(records))
    rows = eventgpt_json.KIND.questions(root).rows
    assert [row.question for row in rows] == [turn[0].replace("<event>", "").strip() for turns in said for turn in turns]
    assert [row.answer for row in rows] == [turn[1].replace("<event>", "").strip() for turns in said for turn in turns]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["activitynet-qa", "eventgpt", "llava"]), st.integers(0, 1), st.integers(0, 2), st.text(max_size=14), JSON
)
def test_json_of_any_shape_gives_rows_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, file: int, index: int, field: str, value: Any
) -> None:
    """One field of one record becomes anything; known names are drawn as often as others."""
    root = tmp_path_factory.mktemp("any") / "data"
    trees.TREES[kind](root)
    path = (root / ("test_q.json", "test_a.json")[file]) if kind == "activitynet-qa" else next(root.glob("*.json"))
    known = list(json.loads(path.read_text())[0])
    rewritten(path, lambda rows: rows[index].update({known[len(field)] if len(field) < len(known) else field: value}))
    try:
        found = datasets.questions_of(root, kind)[1]
        assert all(row.question and row.answer and row.recording.exists() for row in found.rows)
    except BadInput as error:
        assert "\n" not in str(error)


def test_deep_nesting_and_torn_json_are_one_line(tmp_path: Path) -> None:
    root = trees.eventgpt(tmp_path / "data")
    for text in ("[" * 100_000, '[{"event_data": ', "\xff"):
        (root / "instructions.json").write_text(text)
        assert "is not readable JSON" in refused(conversations.records, root / "instructions.json")


def test_a_line_of_json_ends_with_its_line_feed_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    row = {"recording": "a", "question": "one\u2028two\x0b", "answer": "yes"}
    (tmp_path / "qa.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n", encoding="utf-8")
    assert [question.question for question in read_questions(tmp_path / "qa.jsonl")] == [row["question"]]
