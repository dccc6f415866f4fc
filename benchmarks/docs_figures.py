r"""Writes the figures of docs/ that come from the main comparison and from `eventspec plan`, so that none is typed by hand.

python benchmarks/docs_figures.py            # rewrite the blocks between the markers, and the chart
python benchmarks/docs_figures.py --check    # exit 1 when one is not what the results say
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from charts import Bar, bars
from pages import ROOT, settle, spread, table, with_blocks

from eventspec.experiments.plan import outlook
from eventspec.experiments.profiles import PROFILES, methods_of

DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks/results"
CONTROLS = ("prior", "ngram")
LENGTHS = (10, 40, 100)
SHARES = (0.806, 0.6, 0.4, 0.25, 0.15)
"""Prefill shares of the table: the first is the one that the early notes of this research promised 4-5x for."""
HEADS = (
    "method",
    "speedup (95 %)",
    "tau",
    "accepted of drafted levels",
    "first choice right where the prior is wrong",
    "first provisional, ms",
    "of them kept",
    "first committed, ms",
    "identical",
)
"""Of the table of all arms."""
MAIN = ("hybrid", "cross-modal", "cross-modal, shuffled events", "eagle", "prior", "auto", "autoregressive, all cores")
"""Arms that stand beside each other for every machine."""
PLACEMENTS = {"two": "a core a model", "auto": "cores shared out"}


def main_job(name: str = "main-job") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def row(name: str, found: dict[str, Any]) -> list[str]:
    """One line of the table."""
    low, high = found["speedup_ci95"]
    right = None if name == "prior" else found["acceptance_vision"]  # the prior is wrong there by definition
    early = found["first_provisional_ms"]
    return [
        name,
        f"{found['speedup']:.2f} ({low:.2f} to {high:.2f})",
        f"{found['tau']:.2f}",
        share(found["acceptance"]),
        share(right),
        "-" if early is None else f"{early:.0f}",
        share(found["provisional_kept"]),
        f"{found['first_committed_ms']:.0f}",
        str(found["identical"]),
    ]


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def headline() -> str:
    """The main result on both placements, its controls beside it."""
    found = main_job()
    methods, where = found["methods"], found["environment"]
    own, prior, heads, mixed = (methods[name] for name in ("cross-modal", "prior", "eagle", "hybrid"))
    shared, cores = main_job("shared-cores")["methods"], methods["autoregressive, all cores"]
    chosen, blind, alone = (shared[name] for name in ("auto", "prior", "cross-modal"))
    return (
        f"Measured on the bundled pair ({found['n']} held-out questions about {found['recordings']} synthetic scenes, "
        f"{where['processor']}, {where['cores']} cores, fp32, every placement in one interleaved run): `auto`, the default, "
        f"is **{chosen['speedup']:.2f}x** as fast as plain decoding on all cores, of a ceiling of "
        f"**{chosen['ceiling']:.2f}x**. The event camera is not why: the blind text prior, a control that has seen nothing, "
        f"reaches {blind['speedup']:.2f}x there, and `cross-modal`, whose drafter takes a core from the target, "
        f"{alone['speedup']:.2f}x. With one core a model, as on two accelerators, `cross-modal` is {own['speedup']:.2f}x as "
        f"fast as plain decoding on one core, of a ceiling of {own['ceiling']:.2f}x; the prior {prior['speedup']:.2f}x, "
        f"`eagle` {heads['speedup']:.2f}x, `hybrid`, which drafts from all, {mixed['speedup']:.2f}x, and plain decoding on "
        f"both cores {cores['speedup']:.2f}x. The first provisional token of `cross-modal` comes after "
        f"{own['first_provisional_ms']:.0f} ms, and plain decoding commits its first after "
        f"{methods['autoregressive']['first_committed_ms']:.0f} ms; of all its provisional tokens "
        f"{own['provisional_kept']:.0%} are kept, of the prior's {prior['provisional_kept']:.0%}. "
        f"{own['identical']} of {found['n']} answers are the target's own, token by token."
    )


def comparison() -> str:
    """Every arm of the main comparison."""
    found = main_job()
    base, prior = found["methods"]["autoregressive"], found["methods"]["prior"]
    rows = [row(name, figures) for name, figures in found["methods"].items()]
    facts = [
        f"n = {found['n']} questions about {found['recordings']} recordings. {prior['vision_share']:.0%} of the answer tokens "
        f"({prior['vision_tokens']}) are ones that the blind prior gets wrong. The target answers "
        f"{base['exact_match_short']:.0%} of the short questions exactly right, {base['exact_match']:.0%} of all.",
        "",
    ]
    return "\n".join([*facts, *table(list(HEADS), rows)]).rstrip()


def shared_cores() -> str:
    """The same questions where cores are shared out, as by default."""
    found = main_job("shared-cores")
    where, methods = found["environment"], found["methods"]
    rows = [[*row(name, own), f"{own['total_ms']:.0f}"] for name, own in methods.items()]
    ceiling = methods["auto"]["ceiling"]
    told = f"n = {found['n']}, {where['processor']}, {where['cores']} cores. Ceiling {ceiling:.2f}x."
    return "\n".join([told, "", *table([*HEADS, "whole answer, ms"], rows)]).rstrip()


def machines() -> str:
    """The main arms on every machine that measured them."""
    files = sorted([*RESULTS.glob("main-job*.json"), *RESULTS.glob("shared-cores*.json")])
    earlier = sorted((RESULTS / "earlier").glob("*.json"))  # with weights that no longer ship, until a machine measures again
    runs = [json.loads(path.read_text()) for path in (*files, *earlier)]
    where = [(run["environment"]["processor"], PLACEMENTS[run["environment"]["device_plan"]]) for run in runs]
    places = [(*place, "earlier weights") if number >= len(files) else place for number, place in enumerate(where)]
    base = [run["methods"]["autoregressive"] for run in runs]
    rows = [
        ["questions", *(str(run["n"]) for run in runs)],
        ["load at the end", *(str(run["environment"]["load"][0]) for run in runs)],
        ["plain decoding, ms", *(f"{one['total_ms']:.0f}" for one in base)],
        ["ceiling", *(f"{one['ceiling']:.2f}" for one in base)],
    ]
    for name in MAIN:
        found = [run["methods"].get(name) for run in runs]
        rows.append([name, *("-" if one is None else spread([one["speedup"], *one["speedup_ci95"]]) for one in found)])
    for control in ("prior", "hybrid, shuffled events", "hybrid, blank events"):
        against = [run["methods"]["hybrid"]["against"].get(control) for run in runs]
        rows.append([f"hybrid over {control}", *("-" if one is None else spread(one, ".3f") for one in against)])
    rows.append(["answers that are the target's", *(identical(run) for run in runs)])
    return "\n".join(table(["", *map(", ".join, places)], rows)).rstrip()


def identical(run: dict[str, Any]) -> str:
    """Answers of the main arms, all of them lossless, that are those of plain decoding."""
    same = [run["methods"][name]["identical"] for name in MAIN if name in run["methods"]]
    return f"{sum(same)} of {run['n'] * len(same)}"


def against() -> str:
    """How many times as fast as each control, with intervals."""
    heads = ["method", "control", "times as fast (95 %)", "slower than plain decoding"]
    rows = []
    for name, found in main_job()["methods"].items():
        for control, (ratio, low, high) in found.get("against", {}).items():
            if control in CONTROLS or control.startswith(f"{name}, "):
                rows.append([name, control, f"{ratio:.2f} ({low:.2f} to {high:.2f})", f"{found['slower_share']:.0%}"])
    return "\n".join(table(heads, rows)).rstrip()


def blind() -> str:
    """How the event drafter stands beside the blind prior."""
    methods = main_job()["methods"]
    own, prior = methods["cross-modal"], methods["prior"]
    ratio, low, high = own["against"]["prior"]
    verdict = "faster" if low > 1 else "slower" if high < 1 else "neither faster nor slower, as the interval includes 1"
    return (
        f"On the bundled pair's street the blind prior alone gets {1 - prior['vision_share']:.0%} of the answer tokens right. "
        f"There `cross-modal` is {ratio:.2f} times as fast as `prior` (95 % interval {low:.2f} to {high:.2f}): "
        f"{verdict}."
    )


def mixed() -> str:
    """How the method that drafts from every source stands beside single ones, and beside itself without events."""
    methods = main_job()["methods"]
    own = methods["hybrid"]
    single = max(methods[name]["speedup"] for name in ("cross-modal", "eagle", "specvlm", "prior"))
    blank = spread(own["against"]["hybrid, blank events"])
    return (
        f"Over both, `hybrid` is {own['speedup']:.2f} times as fast as plain decoding, the best single source {single:.2f} "
        f"times. Little of that is the events': it is {blank} times as fast as without any."
    )


def chart() -> str:
    """Speedups of the lossless arms, with intervals and the ceiling."""
    found = main_job()["methods"]
    rows = [
        Bar(name, one["speedup"], tuple(one["speedup_ci95"]), colour=int(name in CONTROLS or name.endswith(" events")))
        for name, one in found.items()
        if name != "autoregressive" and not name.startswith("compressed-target")
    ]
    ceiling = found["cross-modal"]["ceiling"]
    return bars("Speedup of whole answers, with 95 % intervals", rows, "x", {"plain decoding": 1.0, "ceiling": ceiling})


def processors() -> str:
    """Which results were measured where."""
    places: dict[tuple[str, str, int], list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        for where in environments(json.loads(path.read_text())):
            key = (where["processor"], where["torch"], where["cores"])
            if path.name not in places.setdefault(key, []):
                places[key].append(path.name)
    rows = [
        [name, str(cores), torch, ", ".join(f"`{file}`" for file in files)] for (name, torch, cores), files in places.items()
    ]
    return "\n".join(table(["processor", "cores", "torch", "results"], rows)).rstrip()


def environments(found: Any) -> list[dict[str, Any]]:
    """Every environment that a results file names."""
    if not isinstance(found, dict):
        return []
    own = [found["environment"]] if isinstance(found.get("environment"), dict) else []
    return own + [where for below in found.values() for where in environments(below)]


def ceilings() -> str:
    """The ceiling by prefill share."""
    heads = ["prefill share", *(f"{share:.1%}" for share in SHARES)]
    return "\n".join(table(heads, [["ceiling", *(f"{1 / share:.2f}x" for share in SHARES)]])).rstrip()


def profiles() -> str:
    """What `plan` predicts for named machines."""
    heads = [
        "profile",
        "tokens",
        "prefill share",
        "ceiling",
        "`cross-modal` as accepted in recorded runs",
        "head start accepted whole, plain decoding behind it",
    ]
    rows = []
    for name, machine in PROFILES.items():
        for tokens in LENGTHS:
            found = outlook(machine.stages, methods_of(machine, tokens), tokens)
            methods = found["methods"]
            speeds = [methods[kind]["speedup"] for kind in ("cross-modal", "cross-modal, whole head start accepted")]
            shares = [f"{found['prefill_share']:.0%}", f"{found['ceiling']:.2f}x"]
            rows.append([f"`{name}`", str(tokens), *shares, *(f"{speed:.2f}x" for speed in speeds)])
    return "\n".join(table(heads, rows)).rstrip()


def reuse() -> str:
    """What sharing features between frames saves and changes."""
    found = json.loads((RESULTS / "reuse.json").read_text())
    rows = []
    for below, own in found["below"].items():
        shares = [(own[f"{part}_share"], *own[f"{part}_ci95"]) for part in ("same", "evenly")]
        rows.append([below, share(own["encoded_share"]), *(f"{s:.0%} ({low:.0%} to {high:.0%})" for s, low, high in shares)])
    heads = ["`reuse_below`", "frames encoded", "answers that stay (95 %)", "control: as many frames, evenly chosen"]
    asked = f"{found['questions']} questions about {found['scenes']} scenes of the synthetic street, 8 frames a second."
    better = [below for below, own in found["below"].items() if own["same_ci95"][0] > own["evenly_share"]]
    where = f"better than the control at {', '.join(better)}" if better else "nowhere better than the control"
    told = f"The control shares as many frames of each scene, evenly chosen. Choosing them by events is {where}."
    return "\n".join([asked, "", *table(heads, rows), told]).rstrip()


PAGES = {
    "index.md": {"headline": headline},
    "start/demo.md": {"blind": blind},
    "concepts/ceiling.md": {"ceilings": ceilings, "profiles": profiles, "blind": blind},
    "results/index.md": {
        "comparison": comparison,
        "shared": shared_cores,
        "machines": machines,
        "against": against,
        "blind": blind,
        "processors": processors,
    },
    "limits.md": {"blind": blind, "mixed": mixed},
    "how-to/live.md": {"reuse": reuse},
}


def main() -> int:
    script = Path(__file__).name
    files = {
        DOCS / name: with_blocks(DOCS / name, script, {key: made() for key, made in blocks.items()})
        for name, blocks in PAGES.items()
    }
    return settle({**files, DOCS / "figures/main-job.svg": chart()}, "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
