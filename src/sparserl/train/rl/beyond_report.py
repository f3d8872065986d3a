"""From the races of `beyond` to figures: on how many matrices a structurally new program beats the best recipe.

    write(out)     # OUT/beyond.json and OUT/beyond.md

Needs the records alone, no machine. A matrix counts if the lower 95 % bound of its ratio (the fastest of the recipes
over the new program, one ratio a process, `bounds`) is at least 1.03. The share is of all matrices that had a heat,
those without a new program included. Where it is known whether they are right on other patterns as well
(`elsewhere`), it is said. The programs that are shown have different skeletons, those first that are right elsewhere,
then the highest bounds, each with a diff from the recipe that is nearest to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from sparserl.bench.archive import read_whole
from sparserl.bench.tables import geometric_mean
from sparserl.errors import StoreError
from sparserl.records import Problem
from sparserl.store import read_json, write_atomic, write_json
from sparserl.train.assess import text_sha
from sparserl.train.assess_report import problem_called
from sparserl.train.collected import TIE
from sparserl.train.rl.beyond import ABOUT, FINALS, HEATS
from sparserl.train.rl.bounds import Bound, share
from sparserl.train.rl.diagnostics import skeleton_of
from sparserl.train.rl.elsewhere import Elsewhere, read_elsewhere
from sparserl.train.rl.finals import MARGIN, final_bound, has_nearest, last_of, new_in, raced
from sparserl.train.rl.fresh import FAULT
from sparserl.train.rl.novelty import difference, nearest_recipe
from sparserl.train.rl.side_by_side import least, log_time
from sparserl.train.rules import geometric

SHOWN = 5


@dataclass(frozen=True)
class Standing:
    """One matrix."""

    pair: str
    case: str
    problem: str
    structure: str
    tries: int
    new: int
    """structurally new programs in the heat"""
    heat: float | None
    """the speed of the fastest of them over the best recipe's, in the heat"""
    bound: Bound | None
    """the same of the final; None where there was none, or too few of its processes worked"""
    against_nearest: bool
    """whether the recipe that is nearest to the program was one of the others; it counts only then"""
    text: str
    """the program of the final"""
    best: float | None
    """the speed of the fastest program of all over the best recipe's, in the heat"""
    climbed: float | None
    """the same of the climb's"""
    climb_tries: int
    over_climb: float | None
    """the fastest program's speed over the climb's, in the heat"""
    elsewhere: Elsewhere | None = None
    """what is known of the program of the final on other patterns"""

    @property
    def ahead(self) -> bool:
        """Of whoever ran in the final."""
        return self.bound is not None and self.bound.low >= MARGIN

    @property
    def beyond(self) -> bool:
        return self.against_nearest and self.ahead


def standings(
    heats: Sequence[Mapping[str, Any]],
    finals: Sequence[Mapping[str, Any]],
    modes: Sequence[str],
    elsewhere: Mapping[tuple[str, str], Elsewhere] | None = None,
) -> list[Standing]:
    """Of every matrix with a heat, by name. Races that failed are left out."""
    by_pair: dict[str, list[Mapping[str, Any]]] = {}
    for final in finals:
        by_pair.setdefault(final["pair"], []).append(final)
    found = {
        heat["pair"]: _standing(heat, by_pair.get(heat["pair"], []), modes)
        for heat in heats
        if FAULT not in heat and least(heat, heat["recipes"], modes) is not None
    }
    known = elsewhere or {}
    said = [replace(each, elsewhere=known.get((each.problem, text_sha(each.text)))) for each in found.values()]
    return sorted(said, key=lambda each: (each.problem, each.case))


def read_standings(out: Path) -> tuple[list[Standing], list[str]]:
    """Those of a folder, and the machines that its heats ran on."""
    heats = read_whole(out / HEATS)
    if not heats:
        raise StoreError(f"{out} has no {HEATS}: run `sparserl train beyond` there first.")
    found = standings(heats, read_whole(out / FINALS), read_json(out / ABOUT)["modes"], read_elsewhere(out))
    return found, sorted({each["device"] for each in heats if FAULT not in each})


def _standing(heat: Mapping[str, Any], finals: Sequence[Mapping[str, Any]], modes: Sequence[str]) -> Standing:
    new = new_in(heat)
    finals = last_of(each for each in finals if FAULT in each or {*each["new"]} <= {*new})
    bounds = {text: made for text in raced(finals) if (made := final_bound(finals, text, modes)) is not None}
    text = max(bounds, key=lambda each: bounds[each].low, default="")
    best, climbed = (_over_recipes(heat, heat[name], modes) for name in ("best", "climbed"))
    return Standing(
        pair=heat["pair"],
        case=heat["case"],
        problem=heat["problem"],
        structure=heat["structure"],
        tries=heat["tries"],
        new=len(new),
        heat=max((r for t in new if (r := _over_recipes(heat, t, modes)) is not None), default=None),
        bound=bounds.get(text),
        against_nearest=bool(text) and has_nearest(finals, text, heat["problem"]),
        text=text,
        best=best,
        climbed=climbed,
        climb_tries=heat.get("climb_tries", 0),
        over_climb=None if best is None or climbed is None else best / climbed,
    )


def _over_recipes(heat: Mapping[str, Any], text: str, modes: Sequence[str]) -> float | None:
    rival, own = least(heat, heat["recipes"], modes), log_time(heat, text, modes) if text else None
    return None if rival is None or own is None else exp(rival[0] - own)


# ── Figures ───────────────────────────────────────────────────────────────────


def figures(found: Sequence[Standing]) -> dict[str, Any]:
    """All counts, by problem too; matrices are those with a heat."""
    problems = sorted({each.problem for each in found})
    return {
        "margin": MARGIN,
        "all": _counts(found),
        "by_problem": {name: _counts([each for each in found if each.problem == name]) for name in problems},
        "climb": _against_climb(found),
    }


def _counts(found: Sequence[Standing]) -> dict[str, Any]:
    hits = [each for each in found if each.beyond]
    value, low, high = share(len(hits), len(found)) if found else (0.0, 0.0, 1.0)
    ratios = [each.bound.ratio for each in hits if each.bound is not None]
    return {
        "matrices": len(found),
        "with_new": sum(each.new > 0 for each in found),
        "in_final": sum(each.bound is not None for each in found),
        "beyond": len(hits),
        "waiting": sum(each.ahead and not each.against_nearest for each in found),
        "elsewhere": sum(each.elsewhere.holds for each in hits if each.elsewhere is not None),
        "looked_elsewhere": sum(each.elsewhere is not None for each in hits),
        "patterns": max((each.elsewhere.tried for each in hits if each.elsewhere is not None), default=0),
        "share": value,
        "share_low": low,
        "share_high": high,
        "mean_ratio": geometric_mean(ratios),
        "tries": sum(each.tries for each in found),
    }


def _against_climb(found: Sequence[Standing]) -> dict[str, Any] | None:
    """How often the fastest program beats the climb's by more than a tie, and the other way round.

    Where nothing that was tried is right, the climb wins.
    """
    climbed = [each for each in found if each.climbed is not None]
    both = [each for each in climbed if each.over_climb is not None]
    ratios = [each.over_climb for each in both if each.over_climb is not None]
    if not ratios:
        return None
    kinds = Counter("tie" if abs(log(r)) <= log(1 + TIE) else "win" if r > 1 else "loss" for r in ratios)
    kinds["loss"] += len(climbed) - len(both)
    mean = geometric([log(ratio) for ratio in ratios])
    return {
        "matrices": len(climbed),
        "tries": sum(each.tries for each in climbed),
        "climb_tries": sum(each.climb_tries for each in climbed),
        "wins": kinds["win"],
        "losses": kinds["loss"],
        "ties": kinds["tie"],
        "over_climb": {"value": mean.value, "low": mean.low, "high": mean.high},
        "over_recipe": geometric_mean(each.best for each in both),
        "climb_over_recipe": geometric_mean(each.climbed for each in both),
        "ahead": sum(each.best is not None and each.best >= MARGIN for each in climbed),
        "climb_ahead": sum(each.climbed is not None and each.climbed >= MARGIN for each in climbed),
    }


def shown(found: Sequence[Standing], count: int = SHOWN) -> list[dict[str, Any]]:
    """The best programs of different skeletons, with what sets them apart from the nearest recipe."""
    ranked = sorted((each for each in found if each.bound is not None), key=_rank)
    by_skeleton: dict[str | None, Standing] = {}
    for each in ranked:
        by_skeleton.setdefault(skeleton_of(each.text), each)
    best = list(by_skeleton.values())[:count]
    return [_shown(each, problem_called(each.problem)) for each in best]


def _rank(each: Standing) -> tuple[bool, bool, float, str]:
    """Those that count first, and of them those that are not wrong elsewhere."""
    assert each.bound is not None
    wrong = each.elsewhere is not None and bool(each.elsewhere.wrong)
    return not each.beyond, wrong, -each.bound.low, each.pair


def _shown(each: Standing, problem: Problem) -> dict[str, Any]:
    recipe = nearest_recipe(each.text, problem)
    assert each.bound is not None
    return {
        "case": each.case,
        "problem": each.problem,
        "structure": each.structure,
        **asdict(each.bound),
        "elsewhere": None if each.elsewhere is None else asdict(each.elsewhere),
        "text": each.text,
        "nearest": recipe.name,
        "diff": difference(each.text, recipe),
    }


# ── On disk ───────────────────────────────────────────────────────────────────


def write(out: Path) -> dict[str, Any]:
    """Make beyond.json and beyond.md from the records of a folder; returns the figures."""
    found, devices = read_standings(out)
    said = {
        **read_json(out / ABOUT),
        "devices": devices,
        **figures(found),
        "best": shown(found),
        "standings": [_plain(each) for each in found],
    }
    write_json(out / "beyond.json", said)
    write_atomic(out / "beyond.md", page(said).encode())
    return said


def _plain(each: Standing) -> dict[str, Any]:
    record = asdict(each)
    del record["text"]
    return {**record, "beyond": each.beyond}


def page(said: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    parts = [_head(said), _table(said), _waiting(said["all"]), _elsewhere(said["all"]), _climb(said["climb"])]
    parts = [part for part in parts if part]
    parts += [_program(number, each) for number, each in enumerate(said["best"], 1)]
    return "\n".join(parts)


def _head(said: Mapping[str, Any]) -> str:
    machine = ", ".join(said["devices"]) or said["device"]
    modelled = " Times are modelled." if said["device"] == "sim" else ""
    return (
        "# Beyond the teacher\n\n"
        f"{machine}, {' and '.join(said['modes'])} mode.{modelled} A matrix counts if a structurally new program beats "
        "the fastest of the fitted recipes, and the recipe that it is nearest to, with the program's numbers too, by "
        f"{100 * (said['margin'] - 1):.0f} % (lower 95 % bound, "
        f"{said['processes']} fresh processes, {said['rounds']} rounds in turns).\n"
    )


def _table(said: Mapping[str, Any]) -> str:
    rows = [
        "| problem | matrices | with new programs | in the final | beyond | share (95 %) | mean ratio | judged tries |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, each in {"all": said["all"], **said["by_problem"]}.items():
        within = f"{100 * each['share']:.1f} % ({100 * each['share_low']:.1f}–{100 * each['share_high']:.1f})"
        mean = "–" if each["mean_ratio"] is None else f"{each['mean_ratio']:.3f}"
        numbers = [each[key] for key in ("matrices", "with_new", "in_final", "beyond")]
        rows.append("| " + " | ".join([name, *map(str, numbers), within, mean, str(each["tries"])]) + " |")
    return "\n".join(rows) + "\n"


def _waiting(counts: Mapping[str, Any]) -> str:
    if not counts["waiting"]:
        return ""
    said = "Not counted, as it is ahead and has yet to run beside the recipe that it is nearest to: "
    return f"{said}{counts['waiting']}.\n"


def _elsewhere(counts: Mapping[str, Any]) -> str:
    """Nothing where nobody has looked."""
    if not counts["looked_elsewhere"]:
        return ""
    share_of_all = 100 * counts["elsewhere"] / counts["matrices"]
    return (
        f"Of the {counts['looked_elsewhere']} programs that were tried on {counts['patterns']} small patterns of other "
        f"shapes, on the simulator, {counts['elsewhere']} ({share_of_all:.1f} % of the matrices) are right wherever "
        "their layout admits them and they compile; the others leave out what their own pattern doesn't have.\n"
    )


def _climb(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "No climb was raced beside it.\n"
    mean = found["over_climb"]
    return (
        f"Against hill-climbing from the best recipe, on {found['matrices']} matrices ({found['tries']} judged tries, "
        f"the climb {found['climb_tries']}), by one race each: faster on {found['wins']}, slower on "
        f"{found['losses']}, within {100 * TIE:.0f} % on {found['ties']}; {mean['value']:.3f} "
        f"[{mean['low']:.3f}–{mean['high']:.3f}] times as fast. Over the best recipe: {found['over_recipe']:.3f}, "
        f"the climb {found['climb_over_recipe']:.3f}; by {100 * (MARGIN - 1):.0f} % or more on {found['ahead']}, "
        f"the climb on {found['climb_ahead']}.\n"
    )


def _program(number: int, each: Mapping[str, Any]) -> str:
    return (
        f"## {number}. {each['case']} ({each['structure']}), {each['problem']}: {each['ratio']:.3f} "
        f"(at least {each['low']:.3f})\n\n{_said_elsewhere(each['elsewhere'])}"
        f"From `{each['nearest']}`:\n\n```diff\n{each['diff']}\n```\n\n```cuda\n{each['text'].rstrip()}\n```\n"
    )


def _said_elsewhere(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if found["wrong"]:
        return f"Right for its own pattern alone: wrong on {', '.join(found['wrong'])}.\n\n"
    return f"Right on {found['right']} other patterns, wrong on none.\n\n"
