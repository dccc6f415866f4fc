"""``eventspec plan``: what an answer of N tokens would take with every method, and what no method can beat."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer

from eventspec.cli import options
from eventspec.cli.bars import announced, counted, waiting
from eventspec.cli.recorded import Reading
from eventspec.errors import BadInput, several

USUAL_LIMIT = 20
"""Questions that a pair is measured with."""
PREDICTING = ("tokens", "profile", "link", "accept_share", "as_json")
"""What counts for a machine that is not here."""
Profile = Annotated[str | None, typer.Option(help="Or predict another machine by name, e.g. rtx4090-nf4-7b or h200-7b.")]
GigabytesPerSecond = Annotated[
    float | None,
    typer.Option(
        "--link", min=0.01, max=1e5, help="GB/s to assume between two devices; default: as measured where there are two, or 25."
    ),
]
AcceptShare = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Share of answers that skip-encode takes from events alone; default: by the pair's calibration."
    ),
]
Limit = Annotated[int, typer.Option(min=0, help="At most this many questions; 0 = all.")]


def plan(
    context: typer.Context,
    models: options.Models,
    chosen: options.Chosen,
    reading: Reading,
    tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Length of the answer.")] = 64,
    profile: Profile = None,
    questions: Annotated[Path | None, options.path("Measure with these, a qa.jsonl; default: rendered street scenes.")] = None,
    limit: Limit = USUAL_LIMIT,
    link: GigabytesPerSecond = None,
    accept_share: AcceptShare = None,
    as_json: options.AsJson = False,
) -> None:
    """Predict every method's time and speedup for an answer of N tokens, beside the ceiling of all lossless methods."""
    if accept_share is not None and isnan(accept_share):
        raise BadInput("--accept-share nan: give a share from 0 to 1")
    if profile is not None and (measuring := [name for name in options.given(context) if name not in PREDICTING]):
        named = " and ".join(map(options.typed, measuring))
        raise BadInput(f"{named}: for measuring here, and --profile is another machine: leave one of them out")
    if profile is not None:
        found = _of_profile(profile, tokens, link, accept_share)
    else:
        found = _of_pair(models, chosen, reading, (questions, limit), tokens, (link, accept_share))
    if as_json:
        options.print_found(found, True)
    else:
        _print(found)


def _of_profile(name: str, tokens: int, link: float | None, accept_share: float | None) -> dict[str, Any]:
    from eventspec.experiments import plan as plans

    machine = plans.profile(name)
    about = {"profile": name, "about": machine.about, "stages_source": machine.source}
    assumed = plans.Link.assumed(plans.USUAL_LINK if link is None else link)
    found = {**about, **plans.outlook(machine.stages, plans.methods_of(machine, tokens), tokens, assumed)}
    if accept_share is not None:
        from eventspec.experiments.skipping import Skipping
        from eventspec.pairs.names import SKIP

        found["methods"][SKIP] = Skipping.of_profile(machine.stages, accept_share).row(machine.stages, tokens, assumed)
    return found


def _of_pair(
    models: options.Models,
    chosen: options.Chosen,
    reading: Reading,
    asking: tuple[Path | None, int],
    tokens: int,
    assuming: tuple[float | None, float | None],
) -> dict[str, Any]:
    (questions, limit), (link, accept_share) = asking, assuming
    from eventspec.pairs.names import AUTO, BASELINE, CHOICES, SKIP
    from eventspec.recordings.qa import read_questions

    wanted = [BASELINE] if accept_share is None else [BASELINE, SKIP]
    models.check([*wanted, *(CHOICES[name][-1] for name in chosen.given)], chosen)
    given = None if questions is None else read_questions(questions, limit, reading.open)
    announced(f"measuring {models.name} here, which takes about half a minute")
    with waiting("loading the models"):
        from eventspec.experiments.plan import Link
        from eventspec.experiments.stages import measure, street_questions
        from eventspec.lanes.workers import choose_placement, described_placement

        # For a device each: how cores would be shared out is measured when a pair is loaded, and no part of the model.
        if models.device_plan == "auto" and choose_placement("auto", *_devices(models)) == "auto":
            models = replace(models, device_plan="two")
        loaded = models.load([AUTO], chosen)  # with all that drafts
    with (
        loaded as ready,
        nullcontext(given) if given is not None else street_questions(limit) as asked,
        counted("measuring") as show,
    ):
        measured = measure(ready, asked, show, reading.open, accept_share)
        about = f"pair {ready.name}, {described_placement(ready.workers.placement, ready.workers.apart)}"
    names, kind = measured.recordings, "recordings" if given is not None else "clips of the synthetic street"
    about_what = names[0] if len(names) == 1 else f"{len(names)} {kind}"
    source = f"measured here: means over {several(measured.answers, 'answer')} about {about_what}"
    assumed = None if link is None else Link.assumed(link)
    return {"pair": models.name, "about": about, "stages_source": source, **measured.outlook(tokens, assumed)}


def _devices(models: options.Models) -> tuple[str, str]:
    """Where target and drafter are to compute, by the command line or by the pair's file; BadInput for what is not there."""
    from eventspec.models.loading import LoadOptions
    from eventspec.pairs.pair_file import PairFile, folder_of

    file = None if models.target is not None else PairFile.read(folder_of(models.name))
    known = {} if file is None or file.load is None else file.load
    device = models.device or known.get("device", "cpu")
    how = LoadOptions(device=device, drafter_device=models.drafter_device or known.get("drafter_device"))
    return how.first, how.drafting.device


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    page = Console(highlight=False)
    stages = ", ".join(f"{name.replace('_', ' ')} {ms:.1f}" for name, ms in found["stages_ms"].items() if ms is not None)
    page.print(f"{found['about']}; {found['stages_source']}")
    page.print(f"stages, ms: {stages}")
    curve = ", ".join(f"V({length}) {cost:.1f}" for length, cost in found["verify_curve"].items() if length != "1")
    free = found["free_draft_tokens"]
    hidden = "" if free is None else f"; {free:.1f} tokens drafted while the target encodes and prefills"
    page.print(f"verifying k tokens, in steps: {curve}{hidden}")
    page.print(f"prefill share {found['prefill_share']:.1%}, ceiling {found['ceiling']:.2f}x")
    methods = found["methods"]
    errors = any("error" in row for row in methods.values())
    table = Table(
        box=None, header_style="bold", title=f"predicted for {several(found['tokens'], 'token')}", title_justify="left"
    )
    table.add_column("method", overflow="fold")
    for head in ("total ms", "speedup", "of ceiling", "tau", "acceptance", *(["error"] if errors else [])):
        table.add_column(head, justify="right", overflow="fold")
    for name, row in methods.items():
        tau = "-" if row["tau"] is None else f"{row['tau']:.2f}"
        cells = [f"{row['total_ms']:.1f}", f"{row['speedup']:.2f}x", f"{row['share_of_ceiling']:.0%}", tau]
        shares = [row["acceptance"], *([row["error"]] if errors else [])]
        marked = name if row["lossless"] else f"{name}, LOSSY"
        table.add_row(marked, *cells, *("-" if share is None else f"{share:.0%}" for share in shares))
    page.print(table)
    for name, row in methods.items():
        if (cases := row.get("skipping")) is not None:
            best, worst = (
                f"{cases[f'{case}_ms']:.1f} ms, {cases[f'{case}_speedup']:.2f}x" for case in ("accepted", "rejected")
            )
            page.print(
                f"{name}, LOSSY: {cases['accept_share']:.0%} of the answers taken from events alone "
                f"({row['acceptance_source']}): {best}; the others {worst}"
            )
    if errors:
        page.print("error: of the predicted time, the median over answers that the prediction was not made of")
        page.print("acceptance depends on what is seen and asked: give --questions of your own for yours")
    for source in dict.fromkeys(row["acceptance_source"] for row in methods.values() if row["acceptance"] is not None):
        page.print(f"acceptance and tau: {source}")
    read = {name: row for name, row in methods.items() if row["transfer_bytes"]}
    moved = [
        f"{name} {row['transfer_bytes'] / 1e6:.3g} MB an answer, {row['transfer_ms']:.2g} ms" for name, row in read.items()
    ]
    says = "; ".join([*moved, "all else token ids" if moved else "token ids alone"])
    page.print(f"between two devices: {says} ({found['link']['source']})")
    rule = found["rule_of_thumb"]
    page.print(f"untested rule of thumb (prefill share above 40 %, below 20 %): {rule['says']}")
    page.print(f"the ceiling: {rule['ceiling_says']}; {rule['prediction_says']}")
