"""What the README says is there: its commands, its names, its files."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_every_make_command_of_the_readme_is_in_the_makefile() -> None:
    targets = set(re.findall(r"\bmake (\w+)", README))
    assert {"tune", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), f"the Makefile has no target {target!r}"
    for variable in set(re.findall(r"\b(MATRIX|ARGS)=", README)):
        assert f"$({variable})" in MAKEFILE or f"$(if $({variable})" in MAKEFILE


def test_ci_runs_the_readmes_test_command_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    commands = [row for row in script.read_text().splitlines() if row and not row.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]


def test_every_option_of_the_readme_is_an_option_of_the_command() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "sparserl", "tune", "--help"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    for option in set(re.findall(r"--[a-z]+", README)):
        assert option in said, f"sparserl tune has no {option}"


def test_every_subcommand_of_the_readme_exists() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "sparserl", "--help"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    for command in set(re.findall(r"\bsparserl (\w+)", README)):
        assert command in said


def test_the_python_of_the_readme_parses_and_its_names_exist() -> None:
    import ast

    import sparserl
    from sparserl.operator import Operator

    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "sparserl":
                assert hasattr(sparserl, node.attr)
            elif node.value.id == "op":
                assert hasattr(Operator, node.attr) or node.attr == "report"


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_readme_fits_on_one_screen() -> None:
    assert len(README.splitlines()) <= 60


def test_constraints_pin_every_direct_dependency() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(w for extra in project["optional-dependencies"].values() for w in extra)]
    names = {re.split(r"[\[<>=~! ]", w)[0].lower().replace("_", "-") for w in wanted} - {project["name"]}
    rows = [r for r in (ROOT / "constraints.txt").read_text().splitlines() if r and not r.startswith("#")]
    pinned = {r.partition("==")[0].lower().replace("_", "-") for r in rows}
    assert names <= pinned
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", r) for r in rows), "versions only: no hashes, no addresses"


def figures_of(root: Path) -> str:
    """The table for a README: the benchmark's as soon as there is one, until then the reference search's."""
    from sparserl.bench import digest, headline, results

    if (root / "results" / "bench").is_dir():
        return headline.block(root / "results" / "bench", root).strip()
    return digest.markdown(results.load(root / "results" / "reference")).strip()


def picture_of(root: Path) -> str | None:
    """What the benchmark's picture must be; None where there is no benchmark."""
    from sparserl.report import board, picture

    folder = root / "results" / "bench"
    return picture.picture(board.read(folder)) if folder.is_dir() else None


def test_the_figures_of_the_readme_are_those_of_the_stored_records() -> None:
    assert figures_of(ROOT) in README


def test_the_picture_of_the_readme_is_that_of_the_stored_records() -> None:
    drawn = picture_of(ROOT)
    assert drawn is None or (ROOT / "results" / "bench" / "picture.svg").read_text() == drawn


def test_a_benchmark_takes_the_place_of_the_reference_search_as_soon_as_it_is_there(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from report_records import records
    from sparserl import cli
    from sparserl.bench.__main__ import app
    from sparserl.store import append_jsonl

    (tmp_path / "README.md").write_text(README)
    folder = tmp_path / "results" / "bench"
    append_jsonl(folder / "bench.jsonl", *records(12))
    drawn = CliRunner().invoke(cli.app, ["report", str(folder), "--picture", str(folder / "picture.svg")])
    put = CliRunner().invoke(app, ["goals", str(folder), "--of", "real", "--into", str(tmp_path / "README.md")])
    assert (drawn.exit_code, put.exit_code) == (0, 0), drawn.output + put.output
    text = (tmp_path / "README.md").read_text()
    assert figures_of(tmp_path) in text and "](results/bench/picture.svg)" in text
    assert (folder / "picture.svg").read_text() == picture_of(tmp_path)
    append_jsonl(folder / "bench.jsonl", *records(13, seed=1))
    assert figures_of(tmp_path) not in text and (folder / "picture.svg").read_text() != picture_of(tmp_path)


def test_the_count_of_measured_matrices_in_the_readme_is_that_of_the_records() -> None:
    from sparserl.bench import archive

    records = archive.read(ROOT / "results" / "reference", "raced")
    raced = {r["matrix"] for r in records if r["problem"] == "spmv float32"}
    assert f"{len(raced)} of the 115 matrices" in README


def test_what_the_readme_says_of_the_policy_is_what_was_measured_of_the_shipped_one() -> None:
    import json

    held = [json.loads((ROOT / "results" / "rl" / split / "figures.json").read_text()) for split in ("real", "unseen")]
    policies = [each["policies"]["rl"] for each in held]
    count = [each["matrices"] for each in policies]
    right = [f"{100 * each['correct']['1']['value']:.1f}" for each in policies]
    one, best = ([f"{each['at']['solver'][k]['value']:.2f}" for each in policies] for k in ("1", "16"))
    said = " ".join(README.split())
    assert f"for {count[0]} real matrices and {count[1]} of families it never saw" in said
    assert f"{right[0]} and {right[1]} % were right, one program alone {one[0]} and {one[1]}, " in said
    assert f"the best of 16 {best[0]} and {best[1]} times as fast" in said


def test_the_share_of_failures_on_very_large_matrices_is_that_of_the_records() -> None:
    from sparserl.bench.archive import read_whole
    from sparserl.train.assess import MEASURED, read_written

    right = []
    for split in ("real", "unseen", "seen"):
        folder = ROOT / "results" / "rl" / split
        measured = {record["case"]: record for record in read_whole(folder / MEASURED)}
        for case, record in read_written(folder)["rl"].items():
            if measured[case]["nonzeros"] > 20e6:
                right += [measured[case]["programs"][each]["verdict"] == "CORRECT" for each in record["programs"]]
    assert "above 20 million nonzeros a fifth fails" in README
    assert 1 - sum(right) / len(right) == pytest.approx(1 / 5, abs=0.02)
