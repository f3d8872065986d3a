"""The report in a real browser: headless Chromium, spoken to over a pipe by its DevTools protocol."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from report_records import records
from sparserl.report import board, page

pytestmark = pytest.mark.browser
HOSTILE = "<script>alert('1')</script>"
PATIENCE_S = 60.0
TROUBLE = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening")


class Browser:
    """One page of one Chromium."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program is not None
        (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (its_in, its_out)]  # clear of 3 and 4
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "bash", program, *flags,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=high, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (its_in, its_out, *high):
            os.close(end)  # so that a browser that is gone is noticed
        self._out, self._in = our_out, our_in
        self._rest, self._sent, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self._sent:
                self.events.append(answer)
                continue
            assert "error" not in answer, answer
            found: dict[str, Any] = answer["result"]
            return found

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            assert ready, "Chromium does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium is gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait for it to hold."""
        end = time.monotonic() + PATIENCE_S
        while not self.ask(expression):
            assert time.monotonic() < end, f"never held: {expression}"
            time.sleep(0.02)

    def go(self, url: str) -> None:
        self.send("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.events.clear()
        self.send("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def press(self, key: str, code: int) -> None:
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def trouble(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("method") in TROUBLE]

    def close(self) -> None:
        os.write(self._out, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        os.close(self._out)
        os.close(self._in)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "index.html"
    path.write_text(page.page(board.board(records(20)), datetime.date(2026, 1, 2)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser: Browser, address: str) -> Iterator[Browser]:
    """The page, freshly loaded; whatever a test does with it, nothing may be complained about or asked of a network."""
    browser.send("Emulation.setDeviceMetricsOverride", width=1300, height=900, deviceScaleFactor=1, mobile=False)
    browser.send("Emulation.setEmulatedMedia", media="screen")
    browser.go(address)
    yield browser
    assert browser.trouble() == []
    asked = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    assert all(url.partition("#")[0] == address or url.startswith(("data:", "blob:")) for url in asked), asked


GAINS = (
    "[...document.querySelectorAll('#held-0 tbody tr')].map((row) => row.cells[1].dataset.value)"
    ".map((value) => value === '' ? null : parseFloat(value))"
)
HEAD = "document.querySelectorAll('#held-0 th button')[{}]"
VIEW = "document.querySelector('dialog')"


def test_a_click_on_a_head_sorts_and_a_second_turns_it_round(opened: Browser) -> None:
    opened.ask(HEAD.format(1) + ".click()")
    falling = opened.ask(GAINS)
    assert falling[:-1] == sorted(falling[:-1], reverse=True) and falling[-1] is None  # one failed: it stays last
    assert opened.ask(HEAD.format(1) + ".closest('th').ariaSort") == "descending"
    opened.ask(HEAD.format(1) + ".click()")
    rising = opened.ask(GAINS)
    assert rising == [*falling[-2::-1], None]


def test_a_table_sorts_from_the_keyboard(opened: Browser) -> None:
    opened.ask(HEAD.format(0) + ".focus()")
    opened.press("Enter", 13)
    names = opened.ask("[...document.querySelectorAll('#held-0 tbody tr')].map((row) => row.dataset.name)")
    assert len(names) == len(set(names)) and names[0] == HOSTILE
    assert opened.ask(HEAD.format(0) + ".closest('th').ariaSort") == "ascending"


def test_a_matrix_opens_by_its_row_and_closes_with_escape(opened: Browser) -> None:
    opened.ask("document.querySelector('#held-0 tbody tr td').click()")
    opened.until(f"{VIEW}.open")
    name = opened.ask("document.querySelector('#held-0 tbody tr').dataset.name")
    assert opened.ask(f"{VIEW}.querySelector('h2').textContent") == name
    assert opened.ask("decodeURIComponent(location.hash)") == f"#{name}"
    assert opened.ask(f"{VIEW}.querySelectorAll('.grid path').length") > 0
    assert opened.ask(f"{VIEW}.querySelectorAll('.part:not([hidden]) pre em').length") > 3
    opened.press("Escape", 27)
    opened.until(f"!{VIEW}.open && location.hash === ''")


def test_a_matrix_opens_from_the_keyboard_and_the_focus_comes_back(opened: Browser) -> None:
    opened.ask("document.querySelector('#held-0 tbody a').focus()")
    opened.press("Enter", 13)
    opened.until(f"{VIEW}.open && {VIEW}.contains(document.activeElement)")
    opened.press("Escape", 27)
    opened.until("document.activeElement === document.querySelector('#held-0 tbody a')")


def test_a_mark_of_a_plot_opens_its_matrix(opened: Browser) -> None:
    opened.ask("document.querySelector('svg.plot a').dispatchEvent(new MouseEvent('click', { bubbles: true }))")
    opened.until(f"{VIEW}.open")


def test_an_address_with_a_name_opens_that_matrix_whatever_it_is_called(browser: Browser, address: str) -> None:
    browser.go(f"{address}#{quote(HOSTILE, safe='')}")
    browser.until(f"{VIEW}.open")
    assert browser.ask(f"{VIEW}.querySelector('h2').textContent") == HOSTILE
    assert browser.ask(f"{VIEW}.querySelectorAll('script').length") == 0
    assert browser.trouble() == []
    browser.go(f"{address}#nobody%")
    assert browser.ask(f"{VIEW}.open") is False and browser.trouble() == []


def test_next_and_previous_walk_the_table_in_its_order(opened: Browser) -> None:
    opened.ask(HEAD.format(1) + ".click()")
    names = opened.ask("[...document.querySelectorAll('#problem-0 tr[data-name]')].map((row) => row.dataset.name)")
    opened.ask(f"location.hash = encodeURIComponent({json.dumps(names[0])})")
    opened.until(f"{VIEW}.open")
    opened.ask("document.querySelector('[data-step=\"1\"]').click()")
    opened.until(f"{VIEW}.querySelector('h2').textContent === {json.dumps(names[1])}")


BIG = "[...document.querySelectorAll('.big')].filter((each) => each.checkVisibility()).map((each) => each.textContent)"
MODES = "[...document.querySelectorAll('[data-mode-switch]')].filter((each) => each.checkVisibility())"


def test_problem_and_mode_switch_what_is_shown(opened: Browser) -> None:
    shown = "[...document.querySelectorAll('.problem')].map((each) => each.checkVisibility())"
    assert opened.ask(shown) == [True, False, False]
    opened.ask("document.querySelector('[data-problem-switch=\"1\"]').click()")
    assert opened.ask(shown) == [False, True, False]
    (before,) = opened.ask(BIG)
    opened.ask("document.querySelector('[data-mode-switch=chain]').click()")
    (after,) = opened.ask(BIG)
    assert before != after


def test_a_problem_offers_the_modes_it_has_and_the_chosen_one_comes_back(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-mode-switch=chain]').click()")
    opened.ask("document.querySelector('[data-problem-switch=\"2\"]').click()")
    assert opened.ask(f"{MODES}.map((each) => [each.textContent, each.ariaPressed])") == [["solver", "true"]]
    (big,) = opened.ask(BIG)
    assert big != "–"
    opened.ask("document.querySelector('[data-problem-switch=\"0\"]').click()")
    pressed = [["solver", "false"], ["chain", "true"]]
    assert opened.ask(f"{MODES}.map((each) => [each.textContent, each.ariaPressed])") == pressed


def test_next_and_previous_pass_over_what_a_class_or_a_filter_hides(opened: Browser) -> None:
    rows = "[...document.querySelectorAll('#problem-0 tr[data-name]')]"
    opened.ask("document.querySelector('.chip[data-only=block]').click()")
    names = opened.ask(f"{rows}.filter((row) => row.checkVisibility()).map((row) => row.dataset.name)")
    assert 1 < len(names) < opened.ask(f"{rows}.length")
    opened.ask(f"location.hash = encodeURIComponent({json.dumps(names[0])})")
    opened.until(f"{VIEW}.open")
    for name in [*names[1:], names[0]]:
        opened.ask("document.querySelector('[data-step=\"1\"]').click()")
        opened.until(f"{VIEW}.querySelector('h2').textContent === {json.dumps(name)}")
    opened.ask("location.hash = 'mesh_small_0'")  # which the class hides
    opened.until(f"{VIEW}.querySelector('h2').textContent === 'mesh_small_0'")
    opened.ask("document.querySelector('[data-step=\"-1\"]').click()")
    opened.until(f"{VIEW}.querySelector('h2').textContent === {json.dumps(names[-1])}")


def test_the_filter_and_the_class_narrow_the_table(opened: Browser) -> None:
    count = "[...document.querySelectorAll('#held-0 tbody tr')].filter((row) => row.checkVisibility()).length"
    whole = opened.ask(count)
    opened.ask(
        "(() => { const box = document.querySelector('input[aria-controls=held-0]'); box.value = 'mesh';"
        " box.dispatchEvent(new Event('input')); })()"
    )
    some = opened.ask(count)
    opened.ask("document.querySelector('.chip[data-only=extreme]').click()")
    assert whole > some > opened.ask(count) == 1
    assert opened.ask("document.querySelector('[data-of=held-0]').textContent") == f"1 of {whole}"


@pytest.mark.parametrize("width", [320, 390, 768])
def test_nothing_but_tables_and_source_scrolls_sideways(opened: Browser, width: int) -> None:
    opened.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=2, mobile=True)
    assert opened.ask("document.documentElement.scrollWidth") == width
    opened.ask("location.hash = 'mesh_small_0'")
    opened.until(f"{VIEW}.open")
    assert opened.ask(f"{VIEW}.scrollWidth") <= width


def test_on_paper_every_problem_is_there_and_no_switch(opened: Browser) -> None:
    opened.ask("document.querySelector('[data-mode-switch=chain]').click()")
    opened.send("Emulation.setEmulatedMedia", media="print")
    assert opened.ask("[...document.querySelectorAll('.problem')].every((each) => each.checkVisibility())")
    assert len(opened.ask(BIG)) == 3, "one was measured in solver mode alone"
    assert not opened.ask("document.querySelector('.bar-of-switches').checkVisibility()")


def test_the_page_of_one_matrix_loads_without_complaint(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    one = [r for r in records(3) if r["kind"] == "about" or r["matrix"].endswith("_2")]
    path.write_text(page.single(one), encoding="utf-8")
    browser.go(path.as_uri())
    assert browser.ask("document.querySelectorAll('.part').length") == 3 and browser.trouble() == []
