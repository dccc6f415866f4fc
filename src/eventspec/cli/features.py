"""``eventspec train features`` and ``eventspec bench gaps``: what both models of a pair compute, and how far apart it lies."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventspec.cli import options
from eventspec.cli.bars import announced, shown, tracked, waiting
from eventspec.errors import BadInput, several
from eventspec.files import check_files, check_folder, check_outputs, writing
from eventspec.train.names import check_out, launched

LEGEND = (
    "Every row stands beside its control: the event model with another clip's events, in text at the same tokens. In brackets: "
    "95 % intervals over recordings. floor: between the target's own rows of different clips. Gaps between sets do not see "
    "which rows belong together, so the control has nearly the same ones. classifier: held-out share of rows whose model it "
    "names, 50 % is chance. No gap is an acceptance."
)
Cells = Sequence[str]


def features(
    out: Annotated[Path, options.path("The folder of states.")],
    pair: options.PairName = "nano",
    questions: Annotated[
        Path | None,
        options.path("For a pair of checkpoints: a qa.jsonl with recordings and questions; else clips are rendered."),
    ] = None,
    work: Annotated[
        Path | None, options.path("What the target said, which trainings share, and rendered clips; by default OUT/work.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many questions, 0 = all; or rendered clips, 0 = 40.")] = 0,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=4, help="With --questions: longest answer that is read; by default 96 tokens.")
    ] = None,
    stored: Annotated[
        Literal["float16", "int8"],
        typer.Option(help="int8 takes half the room, with a scale for every row; the error is told."),
    ] = "float16",
    resume: Annotated[bool, typer.Option(help="Go on in a folder that holds an earlier run.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Write what both models of a pair compute of the same recordings, for `bench gaps`: tower, visual rows, and the language
    models' last two layers at the tokens of the target's answers."""
    from eventspec.pairs.pair_file import folder_of
    from eventspec.recordings.qa import read_questions
    from eventspec.recordings.recording import whole_of

    if launched() > 1:
        raise BadInput(f"features are read in one process, not in {launched()}: start it without torchrun")
    if questions is None and max_new_tokens is not None:
        raise BadInput("--max-new-tokens is for --questions: leave it out")
    check_out(out, resume)
    asked = [] if questions is None else read_questions(questions, limit)
    read = [folder_of(pair), questions, *dict.fromkeys(whole_of(one.recording) for one in asked)]
    check_outputs({"--out": out, "--work": work}, read)
    if work is not None:
        check_folder(work)
    with waiting("loading"):
        from eventspec.train import features as recipe
        from eventspec.train.names import Given

    recipe.check(pair, asked, limit)
    announced(f"writing into {out}")
    place = work or out / "work"
    given = None if questions is None else Given(questions, place, max_new_tokens or 96, limit)
    with writing(out), shown(("answer", "states")) as report:
        found = recipe.extract(pair, given, limit, out, place, stored, report)
    rows, lost = found["rows"], max(own["error"] for own in found["arrays"].values())
    lines = [
        f"{several(found['n_recordings'], 'recording')}: {rows['visual']} visual rows and {rows['text']} of answers a layer, "
        f"{found['bytes'] / 1e6:.1f} MB as {stored}, whose error is {lost:.2g} of them (root mean square)"
    ]
    if found["left_out"]:
        lines.append(f"{several(found['left_out'], 'recording')} more did not fit")
    options.print_found(found, as_json, *lines, f"the states are in {out}: eventspec bench gaps {out}")


def gaps(
    folder: Annotated[Path, options.path_argument("A folder of states, as `train features` writes it.")],
    adapter: Annotated[
        list[str] | None,
        typer.Option(help="After this one: a name of the pair, or a folder; by default all that the pair has. Repeatable."),
    ] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only recordings that trainings on the same questions keep back.")
    ] = False,
    out: Annotated[Path | None, options.path("Draw the figures: a .png or .svg file.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """How far apart what both models compute lies, layer by layer, before and after adapters, beside another clip's events."""
    if out is not None and out.suffix not in (".png", ".svg"):
        raise BadInput(f"--out {out} is neither a .png nor a .svg file: give it one of these names")
    check_files({"--out": out}, [folder])
    with waiting("loading"):
        from eventspec.experiments import gaps as measures
        from eventspec.experiments.statistics import scipy
        from eventspec.train.states import States

        scipy()  # refused here where it is not installed
        states = States.open(folder)
        adapters = measures.adapters_of(states, list(dict.fromkeys(adapter or [])))
    with tracked() as show:
        found = measures.measure(states, adapters, held_out, lambda share: show("gaps", share, {}))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        measures.draw(found, out)
    options.print_found(found, as_json, *lines_of(found), *([] if out is None else [f"figure: {out}"]))


def lines_of(found: Mapping[str, Any], width: int = 100) -> list[str]:
    """What `experiments.gaps.measure` found, in lines: row by row, set by set, then what is missing, and why."""
    heads = (
        ("row by row", "cosine", "> 0.8", "> 0.85", "> 0.9", "L2"),
        ("set by set", "CKA", "MMD", "sliced W", "W", "classifier"),
    )
    pages: tuple[list[Cells], list[Cells]] = ([], [])
    why: dict[str, None] = {}
    for row in found["rows"]:
        own, layer = row["intervals"], found["layers"][row["layer"]]
        name = f"  {'other events' if row['control'] else row['adapter'] or 'before'}"
        if row["adapter"] is None and not row["control"]:
            widths = " and ".join(f"{layer['widths'][role]}" for role in ("drafter", "target"))
            title = (f"{row['layer']}, {widths} wide, {layer['rows']['pairs']} rows",)
            pages[0].append(title)
            pages[1].append((f"{row['layer']}, {layer['rows']['sets']} rows, W of {layer['rows']['matched']}",))
            floor = layer["floor"] or {}
            pages[1].append(
                ("  floor", "", *(_number(floor.get(one)) for one in ("mmd", "sliced_wasserstein", "wasserstein")), "50%")
            )
        shares = [_share(value) for value in row["above"].values()]
        pages[0].append((name, _with_ends(row["cosine"], own["cosine"]), *shares, _number(row["l2"])))
        sets = [_number(row[one]) for one in ("mmd", "sliced_wasserstein", "wasserstein")]
        pages[1].append((name, _with_ends(row["linear_cka"], own["linear_cka"]), *sets, _share(row["classifier"])))
        why |= {f"{row['layer']}: {reason}": None for what, reason in row["missing"].items() if what != "intervals"}
    n = f"{found['pair']}, {several(found['recordings'], 'recording')}{', held out' if found['held_out'] else ''}"
    tables = [line for head, page in zip(heads, pages, strict=True) for line in ("", *_aligned(head, page))]
    return [n, *tables, "", *(line for text in (*why, *found["notes"], LEGEND) for line in textwrap.wrap(text, width))]


def _aligned(head: Cells, page: Sequence[Cells]) -> list[str]:
    """Lines of a table, figures to the right; a title, which has no figures, is as wide as it is."""
    rows = [head, *page]
    wide = [max(len(row[at]) for row in rows if len(row) == len(head)) for at in range(len(head))]
    return [
        "  ".join((row[0].ljust(wide[0]), *(cell.rjust(most) for cell, most in zip(row[1:], wide[1:], strict=False)))).rstrip()
        for row in rows
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _with_ends(value: float | None, ends: Sequence[float] | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if ends is None else f"{value:.2f} ({ends[0]:.2f} .. {ends[1]:.2f})"
