"""The page: valid, whole in itself, and it works in a browser."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_records import CLASSES, write_records
from sparserl.bench import page, plots, results
from sparserl.bench.__main__ import app

VOID = {"meta", "input", "br", "hr", "img", "link"}


class Reader(HTMLParser):
    """Follows every tag and keeps ids, attributes and the stored records."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.records = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and data.startswith("{"):
            self.records += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    write_records(out)
    made = CliRunner().invoke(app, ["page", str(out)])
    assert made.exit_code == 0, made.output
    assert made.output.strip() == str(out / "index.html")
    return out


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def test_every_tag_is_closed_and_every_id_is_unique(read: Reader) -> None:
    assert read.open == []
    assert len(read.ids) == len(set(read.ids))


def test_the_page_needs_nothing_from_outside(text: str, read: Reader) -> None:
    assert "http" not in text
    assert "url(" not in text and "@import" not in text
    for name, value in read.attributes:
        if name in ("src", "href"):
            assert value is not None and value.startswith("#")


def test_every_link_leads_somewhere_on_the_page(read: Reader) -> None:
    wanted = {(value or "")[1:] for name, value in read.attributes if name == "href"}
    assert wanted <= set(read.ids)


def test_every_matrix_of_every_problem_has_a_row_and_a_record(folder: Path, text: str, read: Reader) -> None:
    found = results.load(folder)
    records = json.loads(read.records)
    assert set(records["records"]) == {i for i in read.ids if re.match(r"p\d+-", i)}
    assert len(records["records"]) == len(found.rows) == 2 * 2 * len(CLASSES)
    for row in found.rows:
        assert row.matrix.replace("<", "&lt;").replace(">", "&gt;") in text


def test_a_record_has_verdicts_and_the_winners_source(read: Reader) -> None:
    records = json.loads(read.records)
    one = records["records"]["p0-real_small<0>"]
    assert [p[1] for p in one["programs"]][-1] == "WRONG: row 3 </script><b>"
    ((title, at),) = one["sources"]
    assert title == "The fastest in solver and chain mode: rows_warp(lanes=2, pdl=True) on rows index=int32"
    assert "/* rows_warp(lanes=2, pdl=True) on rows index=int32 */" in records["texts"][at]
    assert len(records["texts"]) == 1  # all matrices share it


def test_every_plot_says_in_words_what_it_shows(text: str) -> None:
    plotted = re.findall(r'<svg class="plot"[^>]*>', text)
    assert len(plotted) == 2 * 4
    for tag in plotted:
        assert 'role="img"' in tag and re.search(r'aria-label="[^"]{20,}"', tag)


def test_device_versions_date_and_commands_are_at_the_end(folder: Path) -> None:
    made = page.page(results.load(folder), Path("results/reference"), datetime.date(2026, 1, 2))
    end = made[made.index('id="made"') :]
    for words in ("NVIDIA H200", "driver 13.0", "torch 2.11", "2026-01-02", "--out results/reference",
                  "race --out results/reference --matrices DIR --op spmm --dtype f32 --columns 64"):  # fmt: skip
        assert words in end


def test_modelled_times_are_announced(tmp_path: Path) -> None:
    write_records(tmp_path)
    path = tmp_path / "raced.jsonl"
    path.write_text(path.read_text().replace('"gpu"', '"modelled"'))
    assert "modelled by the simulator, not measured" in page.page(
        results.load(tmp_path), tmp_path, datetime.date(2026, 1, 2)
    )


def test_both_colour_schemes_define_the_same_colours(text: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    names = [set(re.findall(r"(--\w+):", scheme)) for scheme in (light, dark)]
    assert names[0] == names[1] and {f"--{c}" for c in CLASSES} <= names[0]


def test_ticks_keep_their_distance_and_one_is_always_marked() -> None:
    drawn = plots.scatter([plots.Point(1e3, 0.9, "small real", "a"), plots.Point(1e6, 30.0, "small real", "b")],
                          "t", "speed-up", plots.speedup_range([0.9, 30.0]))  # fmt: skip
    assert drawn.count('class="one"') == 1
    heights = sorted(float(y) for y in re.findall(r'<text class="y" x="\d+" y="([\d.]+)"', drawn))
    assert min(b - a for a, b in itertools.pairwise(heights)) >= 18
    assert "nothing measured" in plots.scatter([], "t", "speed-up", (0.9, 2.0))


PROBE = """<script>
document.querySelectorAll('#matrices-0 th button')[7].click();
const body = document.getElementById('matrices-0').tBodies[0];
const order = [...body.rows].map((row) => parseFloat(row.cells[7].dataset.value));
body.rows[0].click();
const opened = body.querySelectorAll('.detail pre').length, failed = body.querySelector('.detail').textContent;
const box = document.querySelector('input[type=search]');
box.value = 'real skewed';
box.dispatchEvent(new Event('input'));
document.title = JSON.stringify({
  sorted: order.every((value, i) => !i || order[i - 1] >= value), opened, failed: failed.includes('row 3 </script'),
  shown: [...body.rows].filter((row) => !row.hidden).length, wide: document.documentElement.scrollWidth <= innerWidth,
});
</script></body>"""


@pytest.mark.browser
def test_sorting_opening_and_filtering_work_in_a_browser(text: str, tmp_path: Path) -> None:
    probe = tmp_path / "probe.html"
    probe.write_text(text.replace("</body>", PROBE.replace("</script'", "<\\/script'")), encoding="utf-8")
    browser = shutil.which("chromium")
    assert browser is not None
    said = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", "--window-size=700,900", probe.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", said)
    assert title is not None
    assert json.loads(title[1]) == {"sorted": True, "opened": 1, "failed": True, "shown": 1, "wide": True}
