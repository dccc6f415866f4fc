"""``eventspec plan``: one JSON object, a table that fits, and one line for what cannot be planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventspec.cli import run


@pytest.mark.parametrize("name", ["rtx4090-nf4-7b", "h200-7b", "h200-7b-measured", "h200-7b-16-frames", "h200-7b-64-frames"])
def test_a_profile_is_predicted_and_says_so(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--profile", name, "--tokens", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["profile"], found["tokens"], found["predicted"]) == (name, 30, True)
    assert {"stages_ms", "prefill_share", "ceiling", "rule_of_thumb", "stages_source"} <= set(found)
    assert {"autoregressive", "cross-modal", "cross-modal, one device"} <= set(found["methods"])
    assert {"total_ms", "speedup", "tau", "share_of_ceiling", "acceptance_source"} <= set(found["methods"]["cross-modal"])


def test_a_share_of_accepted_answers_gives_a_lossy_row(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--profile", "h200-7b-measured", "--tokens", "30"]
    assert run([*asked, "--json"]) == 0
    assert "skip-encode" not in json.loads(capsys.readouterr().out)["methods"], "nothing is known of what it would accept"
    for share in (0.0, 0.868, 1.0):
        assert run([*asked, "--accept-share", str(share), "--json"]) == 0
        row = json.loads(capsys.readouterr().out)["methods"]["skip-encode"]
        cases = row["skipping"]
        assert (row["lossless"], cases["accept_share"], cases["judges"]) == (False, share, "rows")
        between = share * cases["accepted_ms"] + (1 - share) * cases["rejected_ms"]
        assert row["total_ms"] == pytest.approx(between, abs=1e-3)
    assert run([*asked, "--accept-share", "0.5"]) == 0
    assert "skip-encode, LOSSY: 50% of the answers" in " ".join(capsys.readouterr().out.split())


def test_the_link_between_two_devices_is_assumed_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--profile", "h200-7b", "--tokens", "30", "--link", "50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["link"] == {"gb_s": 50.0, "tensor_ms": 0.02, "source": "assumed: 50 GB/s, and 20 us a tensor"}
    assert {row["transfer_bytes"] for row in found["methods"].values()} == {0}
    assert run(["plan", "--profile", "h200-7b", "--tokens", "30"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "between two devices: token ids alone (assumed: 25 GB/s, and 20 us a tensor)" in page


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_page_fits_and_names_the_ceiling(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["plan", "--profile", "h200-7b", "--tokens", "20"]) == 0
    page = capsys.readouterr().out
    words = " ".join(page.split())
    assert "ceiling 2.71x" in words
    assert "predicted for 20 tokens" in words
    assert "87.6" in words
    assert "roofline" in words
    assert max(len(line.rstrip()) for line in page.splitlines()) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tokens", "30", "--profile", "h100"], "choose one of rtx4090-nf4-7b, h200-7b"),
        (["--tokens", "30", "--profile", "h200-7b", "--pair", "embedded"], "--pair"),
        (["--tokens", "30", "--profile", "h200-7b", "--questions", "qa.jsonl"], "--questions"),
        (["--tokens", "30", "--profile", "h200-7b", "--limit", "3"], "--limit"),
        (["--tokens", "0", "--profile", "h200-7b"], "--tokens"),
        (["--profile", "h200-7b", "--tokens", "30", "--link", "0"], "--link"),
        (["--profile", "h200-7b", "--tokens", "30", "--accept-share", "1.1"], "--accept-share"),
        (["--profile", "h200-7b", "--tokens", "30", "--accept-share", "nan"], "--accept-share"),
        (["--target", "nowhere", "--tokens", "30", "--accept-share", "0.5"], "nowhere"),
        (["--tokens", "30", "--pair", "nowhere"], "no pair 'nowhere'"),
        (["--tokens", "30", "--pair", ""], "no pair ''"),
        (["--tokens", "30", "--questions", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
    ],
)
def test_what_cannot_be_planned_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *words]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.count("\n") == 1


def test_questions_about_a_recording_that_is_not_there_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for wrong, says in (("nowhere", "the recording "), ("example:nowhere", "there is no example:nowhere")):
        rows = [{"recording": place, "question": "Who?", "answer": "?"} for place in ("example:street", wrong)]
        (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert run(["plan", "--tokens", "30", "--questions", str(tmp_path / "qa.jsonl")]) == 2
        told = capsys.readouterr()
        assert told.err.count("\n") == 1
        assert f"qa.jsonl, line 2: {says}" in told.err
        assert "nowhere does not exist: check its place" in told.err or "choose one of example:" in told.err
