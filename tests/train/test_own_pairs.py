"""A user's own pair, of two checkpoints with different tokenizers and towers: every training, and every method after it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eventspec.align.acceptance import Calibrated
from eventspec.align.adapters import on_grid
from eventspec.ask import generate
from eventspec.cli import run
from eventspec.core import BadInput
from eventspec.pairs import load_pair
from eventspec.pairs.inventory import offers
from eventspec.pairs.pair_file import PairFile
from eventspec.pairs.trained import ACCEPTANCE
from eventspec.recordings import Recording
from eventspec.recordings.qa import Question, read_questions
from eventspec.scenes.writer import write_scenes
from eventspec.train.adapters import even
from eventspec.train.adapting import same_text
from eventspec.train.data import Branch, pack
from eventspec.train.material import _told, same_beginnings
from eventspec.train.workspace import Answers, Example, loading_of, who_answers

GOLDENS = Path(__file__).parents[2].parent / "shared/goldens"
HERE = pytest.mark.skipif(not GOLDENS.exists(), reason="the goldens are not beside this checkout")
TRAININGS = (
    ("prior",),
    ("adapter", "--output", "features", "--kind", "linear", "--phase", "alignment"),
    ("adapter", "--output", "rows", "--kind", "linear", "--phase", "acceptance"),
    ("packer",),
    ("lora", "--rank", "2", "--batch", "1"),
    ("drafter",),
    ("heads", "--head", "eagle"),
)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code = run([str(word) for word in words])
    found = capsys.readouterr()
    assert code == 0, found.err
    return json.loads(found.out)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair, and questions: three recordings, two questions about each."""
    folder = tmp_path_factory.mktemp("own")
    write_scenes(folder / "scenes", 3, "test", 5)
    rows = [json.loads(line) for line in (folder / "scenes/qa.jsonl").read_text().splitlines()]
    kept = [row for at, row in enumerate(rows) if at == 0 or row["recording"] != rows[at - 1]["recording"]]
    several = [{**row, "question": text} for row in kept for text in (row["question"], "What is there?")]
    (folder / "scenes/qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in several))
    models = GOLDENS / "video_llava/checkpoint", GOLDENS / "eventgpt/checkpoint"
    (folder / "pair").mkdir()
    PairFile.of_checkpoints(folder / "pair", *models, "mine", {"dtype": "float32"}).write()
    return folder


def words_of(place: Path, training: Sequence[str], pair: Path, out: Path) -> list[str]:
    given = ("--pair", pair, "--questions", place / "scenes/qa.jsonl", "--work", place / "work", "--out", out)
    return ["train", *training, *map(str, given), "--preset", "smoke", "--max-new-tokens", "12"]


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    """The pair after all trainings."""
    if not GOLDENS.exists():
        pytest.skip("the goldens are not beside this checkout")
    pair = place / "pair"
    for number, training in enumerate(TRAININGS):
        assert run(words_of(place, training, pair, place / f"out{number}")) == 0, training
        pair = place / f"out{number}/pair"
    return pair


@HERE
def test_the_target_answers_once_for_all_trainings(place: Path, trained: Path) -> None:
    rows = [json.loads(line) for line in (place / "work/answers.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert len({(row["recording"], row["question"]) for row in rows}) == 6
    assert all(len(row["top_ids"]) == len(row["answer"]) for row in rows)


@HERE
def test_a_trained_pair_has_every_method_and_each_lossless_one_gives_the_baselines_tokens(trained: Path) -> None:
    file = PairFile.read(trained)
    assert sum(path.stat().st_size for path in (trained / "pair.toml",)) < 20_000
    lacking = {offer.name: offer.missing for offer in offers(file) if not offer.available}
    assert list(lacking) == ["specvlm"]
    assert len(file.learned) == 2, "the first of three recordings is kept back"
    assert set(file.learned.values()) == {"prior, adapters, packer, lora, drafter, heads"}
    assert "train heads" in str(lacking["specvlm"])
    recording = Recording.open("example:street")
    with load_pair(trained, "one", fit=False) as pair:
        pair = pair.drafting("always")
        base, drafted = generate(pair, recording, "What is moving?", "autoregressive", max_new_tokens=16), dict[str, int]()
        for name in pair.methods:
            found = generate(pair, recording, "What is moving?", name, max_new_tokens=16)
            drafted[name] = found.trace.drafted
            if name != "compressed-target":
                assert found.token_ids == base.token_ids, name
            assert found.lossless == (name not in ("compressed-target", "skip-encode")), name
    assert min(drafted[name] for name in ("cross-modal", "aligned", "event-eagle", "prior", "eagle", "hybrid")) > 0
    assert set(file.tables["drafters"]) == {"lora", "small"}
    assert set(file.tables["adapters"]) == {"linear", "features-linear"}


@HERE
@pytest.mark.parametrize("drafter", ["lora", "small"])
def test_trained_drafters_change_no_token(drafter: str, trained: Path) -> None:
    recording = Recording.open("example:street")
    with load_pair(trained, "one", fit=False).drafting("always") as pair:
        base = generate(pair, recording, "What is ahead?", "autoregressive", max_new_tokens=16)
        with pair.with_event_drafter(drafter) as other:
            found = generate(other, recording, "What is ahead?", "cross-modal", max_new_tokens=16)
    assert found.token_ids == base.token_ids
    assert found.trace.drafted > 0
    shares = any("ids are shared" in note for note in found.trace.notes)
    assert shares == (drafter == "small"), "the small one has the target's tokenizer"


@HERE
def test_a_dry_run_tells_what_it_takes_and_writes_nothing(
    place: Path, trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = (place / "work/answers.jsonl").read_bytes()
    found = told(capsys, *words_of(place, ("prior",), place / "pair", tmp_path / "dry"), "--dry-run", "--json")
    assert all(found[name] > 0 for name in ("seconds", "memory_bytes", "disk_bytes"))
    assert (found["questions"], found["answered"]) == (6, 6)
    asked = words_of(place, ("prior",), place / "pair", tmp_path / "dry")
    assert run([*asked, "--dry-run"]) == 0
    assert "6 of which are answered already" in capsys.readouterr().out
    longer = [word if word != "12" else "13" for word in asked]
    assert told(capsys, *longer, "--dry-run", "--json")["answered"] == 0
    assert not list(tmp_path.iterdir())
    assert (place / "work/answers.jsonl").read_bytes() == before


@HERE
@pytest.mark.parametrize(
    ("training", "says"),
    [
        (("packer", "--scale", "5"), "packer scale 5 does not divide the 16 x 16 patches"),
        (("adapter", "--kind", "magic"), "unknown adapter to rows 'magic'"),
        (("mixture", "--resume"), "leave --resume out"),
        (("prior", "--batch", "2"), "--batch is for what is trained in steps"),
        (("heads", "--device", "cpu"), "--device is for --target"),
        (("heads", "--begin-with", "nano"), "--begin-with is for a pair of ours"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_nothing_stays(
    training: Sequence[str],
    says: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert run(words_of(place, training, place / "pair", tmp_path / "out")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert says in lines[-1]
    assert not list(tmp_path.iterdir())


@HERE
def test_a_prior_counts_short_answers_and_heads_leave_them_out(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One answer in three is a word and its end."""
    file = PairFile.read(place / "pair")
    known = Answers(tmp_path / "work", who_answers(file.place("target"), loading_of(file)), 12)
    for number, question in enumerate(read_questions(place / "scenes/qa.jsonl")):
        ids = [40, 2] if number % 3 == 0 else [40, 50, 60, 70, 2]
        known.add(question, (ids, [[token, *range(7)] for token in ids], [[0.0, *[-9.0] * 7] for _ in ids]))
    words = ("--work", tmp_path / "work", "--json")
    prior = told(capsys, *words_of(place, ("prior",), place / "pair", tmp_path / "prior"), *words)
    heads = told(capsys, *words_of(place, ("heads", "--head", "eagle"), place / "pair", tmp_path / "heads"), *words)
    assert prior["answers"] + prior["judged"] == 6
    assert (heads["answers"], heads["too_short"]) == (2, 2), "of four that the preset asks"


@HERE
@pytest.mark.parametrize("number", range(1, len(TRAININGS)))
def test_a_run_goes_on_with_its_own_questions_only(
    number: int, place: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, out = place / "pair" if number == 1 else place / f"out{number - 1}/pair", place / f"out{number}"
    words = [*words_of(place, TRAININGS[number], pair, out), "--resume"]
    made = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    other = place / "scenes/other.jsonl"
    other.write_text((place / "scenes/qa.jsonl").read_text().replace("What is there?", "What moves?"))
    given = [str(other) if word == str(place / "scenes/qa.jsonl") else word for word in words]
    for changed, says in ((given, "with questions"), ([*words, "--max-new-tokens", "11"], "12, not 11")):
        assert run(changed) == 2
        assert "holds an earlier run with" in (line := capsys.readouterr().err.splitlines()[-1])
        assert says in line
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == made


def test_questions_are_for_checkpoints_and_checkpoints_for_questions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words, says in (
        (("prior", "--work", "w"), "--work is for a pair of checkpoints, nano learns from rendered clips"),
        (("lora", "--max-new-tokens", "9"), "--max-new-tokens is for a pair of checkpoints"),
        (("drafter",), "pair nano is one of ours: `eventspec train embedded` trains its drafter"),
        (("heads", "--questions", "qa.jsonl"), "--questions goes with --target"),
    ):
        assert run(["train", *words, "--out", str(tmp_path / "out")]) == 2
        assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@HERE
def test_a_pair_of_checkpoints_wants_questions_before_anything_is_loaded(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["train", "prior", "--pair", str(place / "pair"), "--out", str(tmp_path / "out")]) == 2
    assert "--questions names a qa.jsonl about recordings to learn from" in capsys.readouterr().err
    (tmp_path / "empty.jsonl").write_text("")
    asked = ("--questions", str(tmp_path / "empty.jsonl"))
    assert run(["train", "prior", "--pair", str(place / "pair"), "--out", str(tmp_path / "out"), *asked]) == 2
    assert "holds no questions" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@HERE
def test_where_there_is_one_recording_figures_say_that_it_was_learned_from(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And nothing is calibrated on it: its answers are known by heart. Of windows the recording is the same one."""
    row = json.loads((place / "scenes/qa.jsonl").read_text().splitlines()[0])
    row["recording"] = str(place / "scenes" / row["recording"])
    windows: list[list[int | None]] = [[None, 300_000], [300_000, 600_000], [600_000, None]]
    questions = tmp_path / "one.jsonl"
    questions.write_text("".join(json.dumps({**row, "window": window}) + "\n" for window in windows))
    given = ("--pair", place / "pair", "--questions", questions, "--work", tmp_path / "work", "--preset", "smoke", "--json")
    few = (*given, "--max-new-tokens", "12", "--out")
    linear = ("train", "adapter", "--kind", "linear", "--phase", "alignment")
    found = told(capsys, *linear, *few, tmp_path / "rows")["calibration"]["linear"]
    assert found["learned_from_judged"]
    assert "learned from the only recording there is" in found["not_calibrated"]
    kept = Calibrated.load(tmp_path / "rows/pair/adapters/linear" / ACCEPTANCE)
    assert kept.few(0.4) == "0 calibration recordings are too few for a risk of 0.4: 2 are needed at least"
    own = ("--pair", tmp_path / "rows/pair", *few[2:], tmp_path / "again")
    again = told(capsys, "train", "adapter", "--kind", "linear", "--phase", "calibration", *own)
    assert "learned from the only recording there is" in again["calibration"]["linear"]["not_calibrated"]
    assert (tmp_path / "again/pair/adapters/linear" / ACCEPTANCE).is_file()
    for training in (("prior",), ("packer",)):
        assert told(capsys, "train", *training, *few, tmp_path / training[0])["learned_from_judged"]


@HERE
@pytest.mark.long
@pytest.mark.parametrize("after", [3.0, 6.0, 9.0])
def test_a_training_that_is_killed_goes_on(after: float, place: Path, trained: Path, tmp_path: Path) -> None:
    words = words_of(place, ("adapter", "--kind", "linear"), place / "pair", tmp_path / "out")
    child = subprocess.Popen([sys.executable, "-m", "eventspec", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "out/pair").exists() or after > 3
    more = ["--resume"] if (tmp_path / "out").exists() and any((tmp_path / "out").iterdir()) else []
    done = subprocess.run([sys.executable, "-m", "eventspec", *words, *more], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "linear" in PairFile.read(tmp_path / "out/pair").tables["adapters"]


@HERE
@pytest.mark.long
def test_two_processes_share_the_answers_out(place: Path, tmp_path: Path) -> None:
    """And learn from them together."""
    pytest.importorskip("accelerate")
    own = tmp_path / "place"
    shutil.copytree(place / "scenes", own / "scenes")
    words = words_of(own, ("packer",), place / "pair", own / "out")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "eventspec"]
    quiet = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MALLOC_TOP_PAD_": "0"}
    done = subprocess.run([*launcher, *words], check=False, env=quiet, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {path.name: path.read_text().splitlines() for path in (own / "work").glob("answers*.jsonl")}
    assert set(rows) == {"answers.jsonl", "answers-1.jsonl"}
    assert sum(map(len, rows.values())) == 6
    assert "2" in PairFile.read(own / "out/pair").tables["packers"]


# ------------------------------------------------------------------------------------------------- what lies between the two
class Letters:
    """A vocabulary whose pieces are given."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def spell(self, ids: Sequence[int]) -> bytes:
        return "".join(self.pieces[i] for i in ids).encode()


class Space:
    def __init__(self, *pieces: str) -> None:
        self.vocabulary = Letters(*pieces)


def test_beginnings_that_both_tokenizers_have_are_found() -> None:
    ours, theirs = Space("ab", "c", "de", ""), Space("a", "bc", "b", "d", "e", "")
    spaces: Any = (ours, theirs)
    # ab|c|de|end against a|bc|d|e|end: after "ab" the other has read "a" or "abc".
    assert same_beginnings(spaces, [0, 1, 2, 3], [0, 1, 3, 4, 5]) == [0, -1, 2, 4]
    assert same_beginnings((), [0, 1], [0, 1]) is None
    # An answer that was cut off, ab|c|nothing against a|bc: after "abc" the other has no row any more, the next branch begins.
    read = same_beginnings(spaces, [0, 1, 3], [0, 1])
    assert read == [0, -1, -1]
    cut = Branch([9, 8], [0, 1, 3], own=Branch([5, 5, 5], [0, 1]), read=read)
    places, known = same_text([[cut]])
    assert int(places[known].max()) < len([5, 5, 5]) + len([0, 1]) - 1


def test_rows_are_paired_where_both_have_read_the_same() -> None:
    shared = Branch([9, 8], [1, 2, 3])
    other = Branch([9, 8], [1, 2, 3], own=Branch([5, 5, 5], [7, 7, 7, 7]), read=[0, -1, 4])
    places, known = same_text([[other, shared]])
    assert places.shape == pack([[other, shared]], 0).ids.shape
    #                                other: its question's last row, then after 4 own tokens; shared: row by row behind 6 rows
    assert places[0].tolist() == [0, 2, 2, 6, 0, 7, 8, 9][: places.shape[1]]
    assert known[0].tolist() == [False, True, False, True, False, True, True, True][: places.shape[1]]


@pytest.mark.parametrize(("count", "wanted"), [(5, 10), (10, 5), (10, 10)])
def test_a_grid_is_laid_on_another(count: int, wanted: int) -> None:
    side = {5: 2, 10: 3}
    across = torch.linspace(0, 1, side[count]).expand(side[count], -1).flatten()[:, None]
    rows = torch.cat((torch.full((1, 1), 7.0), across))[None]
    made = on_grid(rows, wanted)
    assert made.shape == (1, wanted, 1)
    assert made[0, 0, 0] == 7, "the class token stays"
    grid = made[0, 1:, 0].view(side[wanted], side[wanted])
    assert torch.allclose(grid, grid[:1].expand_as(grid)), "what changes from left to right still does, and only that"
    assert (grid[0].diff() > 0).all()
    if count == wanted:
        assert made is rows


def test_windows_of_one_recording_are_one_recording(tmp_path: Path) -> None:
    """To calibrations, which count recordings, and take every other one."""
    asked = [Question("", Path(name), "?", "", window=(at, at + 10)) for name in ("a", "b/../a", "b") for at in range(3)]
    told = _told([Example(question, (1, 2, 3)) for question in asked], tmp_path, (None, None), None, ())
    assert [told.recording(number) for number in sorted(told.answers)] == [0] * 6 + [1] * 3
    assert list(even(told.answers, told.recording)) == list(range(6))


def test_an_event_model_is_wanted_by_name() -> None:
    from eventspec.train.material import Models

    models = Models(PairFile(Path("p"), "mine"), torch.nn.Linear(1, 1), "this needs another", None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="pair mine has no event model: `eventspec train drafter` makes one"):
        _ = models.events
    with pytest.raises(BadInput, match="this needs another: parts that stand between layers"):
        _ = models.target
