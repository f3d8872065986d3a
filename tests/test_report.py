"""The report: valid, whole in itself, honest about what was modelled, and safe whatever a matrix is called."""

from __future__ import annotations

import base64
import datetime
import hashlib
import html
import itertools
import json
import re
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from report_reader import Reader, read
from report_records import PROBLEMS, records
from sparserl import cli
from sparserl.bench.figures import paid_after, standings, summary
from sparserl.bench.plots import Point
from sparserl.bench.run import COSTS
from sparserl.errors import StoreError
from sparserl.report import board, charts, page, paid, sections
from sparserl.report.board import Entry
from sparserl.report.picture import picture
from sparserl.report.source import highlight
from sparserl.report.words import compact, problem_short
from sparserl.store import append_jsonl

TODAY = datetime.date(2026, 1, 3)
HOSTILE = "<script>alert('1')</script>"


@pytest.fixture(scope="module")
def every() -> list[dict[str, Any]]:
    return records(20)


@pytest.fixture(scope="module")
def text(every: list[dict[str, Any]]) -> str:
    return page.page(board.board(every), TODAY)


@pytest.fixture(scope="module")
def reader(text: str) -> Reader:
    return read(text)


def entry(every: list[dict[str, Any]], at: int = 0) -> Entry:
    return [e for e in board.board(every).entries if not e.fault][at]


# ---- whole and valid


def test_every_tag_is_closed_and_every_id_is_unique(reader: Reader) -> None:
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))


def test_every_view_closes_its_tags(reader: Reader) -> None:
    assert len(reader.views) == 20
    for view in reader.views.values():
        assert read(view).open == []


def test_the_page_needs_nothing_from_outside(text: str, reader: Reader) -> None:
    assert not re.search(r"https?:|//[a-z]+\.|url\(|@import", text.partition("<script>")[0])
    for tag, attributes in [*reader.tags, *(t for view in reader.views.values() for t in read(view).tags)]:
        assert tag not in ("img", "iframe", "object", "embed") and "src" not in attributes
        assert (attributes.get("href") or "#").startswith(("#", "data:"))


def test_only_the_pages_own_script_may_run_and_no_request_may_be_made(text: str, reader: Reader) -> None:
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None and f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)


def test_a_hostile_name_is_only_ever_text(text: str, reader: Reader) -> None:
    assert HOSTILE not in text and html.escape(HOSTILE) in text
    assert HOSTILE in reader.views
    for view in reader.views.values():
        tags = {tag for tag, _ in read(view).tags}
        assert "script" not in tags
    assert "</table>" not in re.sub(r"</tbody></table>", "", reader.views["mesh_extreme_11"])


def test_links_to_matrices_lead_to_a_view(reader: Reader) -> None:
    from urllib.parse import unquote

    targets = {unquote(str(a["href"])[1:]) for t, a in reader.tags if t == "a"}
    assert targets - {"made"} == set(reader.views)


def test_115_matrices_and_three_problems_stay_below_six_megabytes() -> None:
    assert len(page.page(board.board(records(115)), TODAY).encode()) < 6e6


# ---- what it says


def test_the_headline_is_the_geometric_mean_of_held_out_real_matrices(every: list[dict[str, Any]], text: str) -> None:
    found = [
        s
        for s in standings(every)
        if (s.problem, s.mode, s.origin, s.headline) == (PROBLEMS[0], "solver", "real", True)
    ]
    mean = summary(found).speedup
    assert mean is not None
    (first, *_) = re.findall(r'<div class="big">([\d.]+)<sup>', text)
    assert first == f"{mean.value:.2f}"
    assert f"over {len([s for s in found if s.speedup])} real held-out matrices" in text


def test_won_tied_and_lost_stand_at_the_top(every: list[dict[str, Any]], text: str) -> None:
    found = [s for s in standings(every) if s.origin == "real" and s.headline]
    top = summary([s for s in found if (s.problem, s.mode) == (PROBLEMS[0], "solver")])
    assert f"<dt>won, {top.tied} tied, {top.lost} lost ({top.failed} failed)</dt>" in text
    assert f">{top.won} / {top.tied} / {top.lost}</td>" in text


def test_each_problem_has_the_modes_it_was_measured_in(text: str) -> None:
    problems = re.findall(r'<section class="problem" id="problem-\d" data-mode="(\w+)" data-modes="([\w ]+)"', text)
    assert problems == [("solver", "solver chain"), ("solver", "solver chain"), ("solver", "solver")]
    assert "over 0 held-out matrices" not in text and text.count('class="hero in-chain"') == 2


def test_the_page_says_what_was_tuned_for_what(every: list[dict[str, Any]], text: str) -> None:
    assert "Each operator was tuned for this mode, apart from that of chain mode." in text
    assert "the operator with dependent launch off, not the best program without it" in text
    once = [{**r, "winners": {"solver": r["winner"]}} if r.get("winners") else r for r in every]
    assert "The operators are those that were tuned for solver mode." in page.page(board.board(once), TODAY)
    unknown = [{**r, "winners": {}} if r["kind"] == "matrix" else r for r in every]
    assert "tuned for" not in page.page(board.board(unknown), TODAY)


def test_what_several_runs_say_is_at_the_end_and_that_versions_differ_is_at_the_top(
    every: list[dict[str, Any]], text: str
) -> None:
    again = {**every[0], "versions": {"torch": "2.12"}, "date": "2026-01-04", "command": "other one"}
    made = page.page(board.board([every[0], again, *every[1:]]), TODAY)
    end = made[made.index('id="made"') :]
    assert "2026-01-02; 2026-01-04" in end and "sparserl bench --matrices DIR" in end and "other one" in end
    assert "torch 2.11 and 2.12" in made.partition("<main>")[0] and "Several versions" not in text


def test_what_was_trained_on_has_a_table_of_its_own(every: list[dict[str, Any]], text: str) -> None:
    tables = dict(re.findall(r'<table class="matrices" id="([\w-]+)">(.*?)</table>', text, re.DOTALL))
    trained = {r["matrix"] for r in every if r["kind"] == "matrix" and r["split"] == "train"}
    held = {r["matrix"] for r in every if r["kind"] == "matrix" and r["headline"]}
    names = {key: {html.unescape(n) for n in re.findall(r'data-name="([^"]*)"', t)} for key, t in tables.items()}
    assert names["trained-0"] == trained and names["held-0"] == held and not trained & held


def test_modelled_figures_are_labelled_wherever_they_stand(every: list[dict[str, Any]], text: str) -> None:
    assert "modelled" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    made = page.page(board.board(records(8, device="sim")), TODAY)
    assert "Modelled, not measured." in made and "paid" not in made.partition('id="made"')[0]
    assert not any("paid back" in view for view in read(made).views.values())
    body = made.partition("<main>")[2].partition("</main>")[0]
    for title in ("<h2>[^<]*", "<h3>[^<]*", r'<div class="big">.*?</p>'):
        found = re.findall(title + '(?:<span class="modelled">)?', body, re.DOTALL)
        assert found and all("modelled" in each for each in found)
    assert all('class="modelled"' in view for view in read(made).views.values() if 'class="numbers"' in view)


def test_measured_and_modelled_times_are_refused_in_one_page() -> None:
    with pytest.raises(StoreError, match="can't be compared"):
        board.board([*records(4), *records(2, device="sim")[1:]])


def test_a_later_record_of_the_same_matrix_replaces_an_earlier_one(every: list[dict[str, Any]]) -> None:
    again = [{**r, "tuning_s": 99.0} for r in every if r["kind"] == "matrix"][:1]
    found = board.board([*every, *again])
    assert len(found.entries) == 60
    assert [e.tuning_s for e in found.entries if (e.matrix, e.problem) == (again[0]["matrix"], PROBLEMS[0])] == [99.0]


def test_a_matrix_that_failed_is_a_row_with_its_reason(text: str, reader: Reader) -> None:
    row = re.search(r'<tr [^>]*data-name="mesh_extreme_11">.*?</tr>', text, re.DOTALL)
    assert row is not None and "failed" in row[0] and "out of memory while packing &lt;/table&gt;" in row[0]
    assert "This matrix failed." in reader.views["mesh_extreme_11"]


def test_a_benchmark_in_which_nothing_could_be_read_has_a_page_too() -> None:
    broken = {"kind": "matrix", "matrix": "a", "problem": "spmv float32", "origin": "real", "fault": "line 1"}
    made = page.page(board.board([broken]), TODAY)
    assert read(made).open == [] and '<div class="big">–</div>' in made


def test_a_folder_without_records_says_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="sparserl bench --out"):
        page.write(tmp_path)


def test_a_folder_of_a_reference_search_says_what_makes_its_page(tmp_path: Path) -> None:
    (tmp_path / "raced.jsonl.zst").write_bytes(b"")
    with pytest.raises(StoreError) as refused:
        page.write(tmp_path)
    assert f"python -m sparserl.bench page {tmp_path}" in str(refused.value) and "--out" not in str(refused.value)


def test_write_makes_index_html_from_the_folder(tmp_path: Path, every: list[dict[str, Any]], text: str) -> None:
    append_jsonl(tmp_path / "bench.jsonl", *every)
    assert page.write(tmp_path, TODAY) == tmp_path / "index.html"
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == text


def test_the_cost_of_tuning_is_shown_by_size_beside_other_numbers_of_candidates(every: list[dict[str, Any]]) -> None:
    one = board.board(every)
    fewer = board.board(records(20, candidates=1))
    cheap = [e for e in fewer.entries if e.problem == one.problems[0] and not e.fault]
    shown = page.page(one, TODAY, [fewer])
    assert "nano, 16 candidates" in shown and "nano, 1 candidate<" in shown
    found = paid.by_size([one, fewer], one.problems[0], "solver")
    decades = {len(str(e.nonzeros)) - 1 for e in cheap}
    assert found.count('<th scope="row"') == len(decades) and all(
        f"10<sup>{each}</sup> to" in found for each in decades
    )
    some = next(iter(decades))
    sized = [e for e in cheap if len(str(e.nonzeros)) - 1 == some]
    seconds = statistics.median(e.tuning_s for e in sized if e.tuning_s is not None)
    row = next(part for part in found.split("<tr>") if f"10<sup>{some}</sup> to" in part)
    assert f">{seconds:.2f}<" in row and f">{len(sized)}<" in row
    assert paid.by_size([one], "spmm float16 7", "solver") == ""


def test_where_processes_shared_the_machine_the_cost_of_tuning_is_that_of_a_benchmark_beside(
    every: list[dict[str, Any]],
) -> None:
    shared = board.board([{**r, **dict.fromkeys(COSTS)} if r["kind"] == "matrix" else r for r in every])
    alone, fewer = board.board(records(12)), board.board(records(12, candidates=1))
    problem = shared.problems[0]
    spent = paid.spent([shared, fewer, alone], problem)
    assert spent is not None and not spent.own
    assert {s.matrix for s in spent.standings} == {e.matrix for e in alone.entries}
    assert paid.spent([shared, fewer], problem) is None, "another number of candidates costs something else"
    assert "to tune a matrix" not in page.page(shared, TODAY)
    assert "nano, 16 candidates" not in paid.by_size([shared, fewer], problem, "solver")
    found = shared.standings(problem, "solver")
    assert "products to pay" not in sections.group_table(found, "solver")
    assert "products to pay" in sections.group_table(alone.standings(problem, "solver"), "solver")


def test_what_tuning_costs_is_said_with_its_own_set_its_size_and_its_process(every: list[dict[str, Any]]) -> None:
    shared = board.board([{**r, **dict.fromkeys(COSTS)} if r["kind"] == "matrix" else r for r in every])
    cost = records(40, problems=PROBLEMS[:1], warm_up="family:arrow")
    near = [r["tuning_s"] for r in cost if r["kind"] == "matrix" and 5e5 <= r["nonzeros"] <= 2e6]
    top = page.page(shared, TODAY, [board.board(cost)]).partition("<h3>By group")[0]
    assert (
        "on a set of their own: 40 matrices of every size, 16 candidates each, one after the other in a process that"
        in top
    )
    words = f"to tune a matrix of about a million nonzeros, median of {len(near)}"
    assert f"<dt>{words}</dt><dd>{statistics.median(near):.1f} s</dd>" in top
    assert "median of 40</dt>" in top, "all of them say when it has paid, the one that failed too"
    assert "on the matrices of this page" in page.page(board.board(every), TODAY)


def test_a_tuning_that_failed_never_pays() -> None:
    three = [s for s in standings(records(12, problems=PROBLEMS[:1])) if s.mode == "solver"]
    failed = next(s for s in three if s.failed)
    assert paid_after([failed]) == float("inf")
    assert paid_after([failed, failed, next(s for s in three if not s.failed)]) == float("inf")


def test_the_picture_says_what_the_page_begins_with_and_has_every_matrix(tmp_path: Path) -> None:
    every = records(30, problems=("spmv float32",))
    append_jsonl(tmp_path / "bench.jsonl", *every)
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path), "--picture", str(tmp_path / "picture.svg")])
    assert done.exit_code == 0, done.output
    drawn = (tmp_path / "picture.svg").read_text(encoding="utf-8")
    space = "http://www.w3.org/2000/svg"
    assert ElementTree.fromstring(drawn).tag == f"{{{space}}}svg" and "http" not in drawn.replace(space, "")
    (hero, *_) = re.findall(r'<div class="big">([\d.]+)<sup>', (tmp_path / "index.html").read_text(encoding="utf-8"))
    found = [e.standings["solver"] for e in board.board(every).entries if e.headline and "solver" in e.standings]
    real, generated = (summary([s for s in found if s.origin == kind]) for kind in ("real", "generated"))
    assert generated.speedup is not None
    words = f"{hero}× on {real.count} real and {generated.speedup.value:.2f}× on {generated.count} generated matrices"
    assert f">{words}<" in drawn
    assert all(f"{s.matrix}:" in html.unescape(drawn) for s in found if s.speedup)
    with pytest.raises(StoreError, match="nothing to draw"):
        picture(board.board([r for r in every if r["kind"] != "time"]))


def test_measured_and_modelled_benchmarks_do_not_stand_side_by_side(every: list[dict[str, Any]]) -> None:
    with pytest.raises(StoreError, match="one kind"):
        page.page(board.board(every), TODAY, [board.board(records(3, device="sim"))])


def test_every_plot_says_in_words_what_it_shows(text: str, reader: Reader) -> None:
    plotted = re.findall(r'<svg class="plot"[^>]*>', text)
    assert len(plotted) == (2 + 2 + 1) * 7, "seven for every mode that a problem was measured in"
    for tag in [
        *plotted,
        *(t for v in reader.views.values() for t in re.findall(r'<svg class="(?:plot|grid)"[^>]*>', v)),
    ]:
        assert 'role="img"' in tag and re.search(r'aria-label="[^"]{20,}"', tag)


def test_both_colour_schemes_define_the_same_colours(text: str) -> None:
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    blocks = re.findall(r":root \{(.*?)\}", style[1].partition("@media print")[0], re.DOTALL)
    light, dark = ({n for b in blocks[i::2] for n in re.findall(r"(--\w+):", b)} for i in (0, 1))
    assert light == dark and "--ours" in light
    used = set(re.findall(r"var\((--\w+)\)", style[1]))
    assert used - {"--share"} <= light


def test_device_versions_and_command_are_at_the_end(text: str) -> None:
    end = text[text.index('id="made"') :]
    for words in ("Example GPU", "torch 2.11", "sparserl bench --matrices DIR", "2026-01-03"):
        assert words in end


# ---- pieces


def test_highlighting_keeps_every_character_of_a_kernel(every: list[dict[str, Any]]) -> None:
    for broken in (
        entry(every).winner["text"],
        'a < b && "x',
        "/* never closed <b>",
        "'",
        "#pragma <x>",
        "x.5f 1e-3 é",
    ):
        marked = highlight(broken)
        assert html.unescape(re.sub(r"</?(?:i|b|u|s|em)>", "", marked)) == broken
    assert highlight("int i = 0x1F; // <b>") == "<u>int</u> i = <s>0x1F</s>; <i>// &lt;b&gt;</i>"
    assert highlight("pdl_wait(); a1 = 2;") == "<em>pdl_wait</em>(); a1 = <s>2</s>;"


@pytest.mark.parametrize(
    ("least", "most"), [(0.96, 1.31), (0.9, 3.0), (1.0, 8.0), (5e3, 6e7), (1.0, 1.4), (1.2, 110.0)]
)
def test_ticks_are_few_enough_round_and_in_range(least: float, most: float) -> None:
    ticks = charts.Axis("x", least, most).ticks()
    assert 3 <= len(ticks) <= 7 and all(least <= t * 1.0000001 and t <= most * 1.0000001 for t in ticks)
    assert all(b > a for a, b in itertools.pairwise(ticks))
    assert len({charts.compact(t) for t in ticks}) == len(ticks)


def test_marks_of_a_lane_do_not_hide_each_other() -> None:
    points = [Point(1.5 + 0.01 * (i % 5), 1.0, "small real", "m") for i in range(10)]
    drawn = charts.lanes({"small": points}, charts.Axis.around("x", [1.0, 3.0]), "Lanes of marks")
    places = re.findall(r"translate\(([\d.]+),([\d.]+)\)", drawn)
    assert len(places) == len(set(places)) == 10


@pytest.mark.parametrize(
    ("value", "words"), [(1500, "1.5k"), (2e7, "20M"), (0.25, "0.25"), (999.9, "1k"), (0, "0"), (3e9, "3G")]
)
def test_compact_numbers(value: float, words: str) -> None:
    assert compact(value) == words


def test_short_names_of_problems() -> None:
    assert [problem_short(p) for p in PROBLEMS] == ["SpMV f32", "SpMV f64", "SpMM f32 × 32"]
    assert problem_short("spmm float16 64 col row") == "SpMM f16 × 64 col row"


def test_a_tuning_becomes_records_that_the_page_can_show() -> None:
    import sparserl
    from sparserl.families import make, values_for
    from sparserl.matrix import Matrix
    from sparserl.report import tuning

    pattern = make("stencil2d", 0, nx=12, ny=8, points=5)
    matrix = Matrix(pattern, values_for(pattern, 0))
    op = sparserl.tune(matrix, device="sim", candidates=2, cache=False)
    made = tuning.records(op, pattern, "a<b")
    json.dumps(made, allow_nan=False)
    (one,) = board.board(made).entries
    assert one.standings["solver"].speedup == pytest.approx(op.speedup)
    shown = page.single(made)
    assert "Modelled, not measured." in shown and "a&lt;b" in shown and "a<b" not in shown
    assert shown.count('class="crown"') == 1 and "<em>" in shown


def test_the_command_makes_the_page_and_says_where_it_is(tmp_path: Path, every: list[dict[str, Any]]) -> None:
    import typer
    from typer.testing import CliRunner

    from sparserl.report.command import report

    append_jsonl(tmp_path / "bench.jsonl", *every)
    app = typer.Typer()
    app.command()(report)
    said = CliRunner().invoke(app, [str(tmp_path)])
    assert said.exit_code == 0 and said.output.strip() == str(tmp_path / "index.html")
    assert (tmp_path / "index.html").stat().st_size > 100_000
