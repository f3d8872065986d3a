"""A collection from before 2026-11-16 in today's words: tile and diagonal programs that are right wherever admitted.

    python runs/restate.py OLD NEW && python -m sparserl.bench pack NEW       # folders of a collection, or estimates

There were tiles without the code for rows that are longer than a block, and diagonals without the
launch for what lies outside of them: right on the matrices that they were measured on, wrong on others. Recipes are
written again by their names; variants get the same lines at the same places. What the lines don't fit (loops over
blocks) is left out. Times stay those of the texts that were measured: where no row is cut and nothing lies outside, the
compiler makes the same of both. `results/collection` is as it was measured.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from sparserl.bench import archive
from sparserl.bench.archive import sha
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.store import append_jsonl, read_jsonl
from sparserl.train.encode_times import read_problem

TAIL = 'extern "C" __global__ void __launch_bounds__(128) tail('
CHANGED = ("// layout: tiles", "// layout: diagonals")
GONE = ("longer than a block", "outside the diagonals")
"""reasons of misfits that there are no more"""


def tile(text: str) -> str | None:
    """A variant that adds up the pieces of cut rows; None where its text has no place for it."""
    if "virtual_block" in text or "gridDim" in text:
        return None
    if "blockIdx.x < pieces" in text or "blockIdx.x < PIECES" in text:
        return baked(re.sub(r"if \(blockIdx\.x < pieces\)", "if (PIECES > 0 && blockIdx.x < PIECES)", text, flags=re.I))
    stores = [line for line in text.split("\n") if line.startswith("    if (row >= 0) ")]
    threads = re.findall(r"<<<blocks, (\d+)>>>", text)
    ready = "const int thread = threadIdx.x;" in text and "acc_t sum" in text
    if len(stores) != 1 or len(threads) != 1 or not ready or "pieces" in text.split("{", 1)[1]:
        return None
    recipe = next(each.text for each in space(Problem()) if f"<<<blocks, {threads[0]}>>>" in each.text)
    joined = recipe[recipe.index("    if (PIECES > 0") : recipe.index("    if (row >= 0)")]
    text = text.replace(stores[0], joined + stores[0])
    text, signatures = re.subn(r"(value_t\* (?:__restrict__ )?y)\)\n\{", r"\1, acc_t* partial, int* arrived)\n{", text)
    lines = text.split("\n")
    launch = next(at for at, line in enumerate(lines) if line.startswith("// launch:"))
    lines[launch:launch] = [line for line in recipe.split("\n") if line.startswith("// workspace:")]
    return baked("\n".join(lines)) if signatures == 1 else None


def baked(text: str) -> str:
    """With how many pieces there are compiled in."""
    lines = text.split("\n")
    if not lines[1].startswith("// bake:"):
        lines.insert(1, "// bake:")
    if "PIECES" not in lines[1].split():
        lines[1] += " PIECES"
    return "\n".join(lines)


def diagonals(text: str) -> str:
    """A variant that launches its tail."""
    if "tail_start[" in text:
        return text
    lines = text.split("\n")
    last = max(at for at, line in enumerate(lines) if line.startswith("// launch:"))
    pdl = lines[last].endswith(" pdl")
    lines.insert(last + 1, "// launch: tail<<<div_up(tail_rows, 128), 128>>>" + " pdl" * pdl)
    recipes = (each for each in space(Problem()) if each.family == "diagonals" and each.pdl == pdl)
    recipe = next(each for each in recipes if each.setting("tail_lanes") == 1).text
    return "\n".join(lines).rstrip("\n") + "\n\n" + recipe[recipe.index(TAIL) :]


def restated(programs: list[dict[str, Any]], measured: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By the name that a program had: its record of today. Those that are left out have none."""
    recipes = {(p, r.name): r.text for p in {row["problem"] for row in measured} for r in space(read_problem(p))}
    own = [row for row in measured if row["origin"] == "recipe"]
    named = {row["program"]: recipes.get((row["problem"], row["name"])) for row in own}
    found = {}
    for record in programs:
        text: str | None = record["text"]
        if text is not None and text.startswith(CHANGED):
            variant = tile if text.startswith(CHANGED[0]) else diagonals
            text = variant(text) if record["parents"] else named.get(record["program"])
        if text is not None:
            found[record["program"]] = {**record, "text": text, "program": sha(text)}
    return found


def main(old: Path, new: Path) -> None:
    programs, measured = archive.read(old, "programs"), archive.read(old, "measured")
    found = restated(programs, measured)
    today = {before: record["program"] for before, record in found.items()}
    records = [{**each, "parents": [today.get(p, p) for p in each["parents"]]} for each in found.values()]
    kept = {each["program"]: each for each in records}
    new.mkdir(parents=True, exist_ok=True)
    append_jsonl(new / "programs.jsonl", *kept.values())
    still = [row for row in reversed(measured) if row["program"] in today]
    rows = {(row["case"], row["problem"], today[row["program"]]): row for row in still}
    append_jsonl(new / "measured.jsonl", *({**row, "program": key[2]} for key, row in reversed(rows.items())))
    append_jsonl(new / "cases.jsonl", *archive.read(old, "cases"))
    for record in read_jsonl(old / "misfits.jsonl"):
        left = {today[p]: why for p, why in record["misfits"].items() if p in today and not any(g in why for g in GONE)}
        append_jsonl(new / "misfits.jsonl", {**record, "misfits": left})
    changed = sum(each["text"] != found[each["program"]]["text"] for each in programs if each["program"] in found)
    said = {"programs": len(programs), "kept": len(kept), "changed": changed, "rows": len(measured), "left": len(rows)}
    print(json.dumps(said))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
