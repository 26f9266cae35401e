"""The page in a browser: Chromium, driven by Playwright. Skipped where either is missing."""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from tiny_server import listen

from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.mailbox import Mailbox
from diskmoe.engine.server.rules import Rules

playwright = pytest.importorskip(
    "playwright.sync_api", reason="pip install playwright: it drives the browser"
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason=f"there is no browser: {', '.join(PROGRAMS)}"),
]
WIDE, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    as_root = hasattr(os, "geteuid") and os.geteuid() == 0
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(
            executable_path=PROGRAM, args=["--no-sandbox"] if as_root else []
        )
        yield found
        found.close()


class Watched:
    """A page, what it complained of and whom it asked."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": WIDE, **options})
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def cells(self) -> bytes:
        """What the map shows."""
        shown = self.page.evaluate("$('canvas').toDataURL()")
        return base64.b64decode(shown.split(",")[1])

    def until(self, what: str) -> None:
        """Waits for an expression; the page's policy lets nothing within it do so."""
        for _ in range(400):
            if self.page.evaluate(f"!!({what})"):
                return
            self.page.wait_for_timeout(50)
        pytest.fail(f"never: {what}")

    def answer(self, text: str) -> str:
        self.page.fill("#text", text)
        self.page.keyboard.press("Enter")
        self.until("$('.turn:last-child .foot')")
        return self.page.inner_text(".turn:last-child .words")


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Watched]:
    watched = Watched(browser, **options)
    try:
        watched.page.goto(address)
        yield watched
        assert not watched.complaints
        assert all(url.startswith(address) for url in watched.asked)
    finally:
        watched.context.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token takes a while, as a large model's does: an answer is there for seconds."""
    put = Mailbox.put

    def put_slowly(mailbox: Mailbox[Any], thing: Any) -> None:
        time.sleep(0.005)
        put(mailbox, thing)

    monkeypatch.setattr(Mailbox, "put", put_slowly)


@pytest.mark.usefixtures("unhurried")
def test_an_answer_streams_and_the_map_follows(browser: Any, address: str) -> None:
    with opened(browser, address) as watched:
        page = watched.page
        watched.until("$('#summary').textContent.includes('in memory')")
        before = watched.cells()
        page.click("#more summary")
        page.fill("#limit", "900")
        page.evaluate(
            """() => { window.lengths = new Set(); new MutationObserver(() => lengths.add(
            $('.turn.assistant .words')?.textContent.length)).observe(
            $('#log'), {subtree: true, childList: true, characterData: true}) }"""
        )
        assert watched.answer("Hello")
        assert page.evaluate("[...lengths].filter(Boolean).length") > 2
        watched.until("$('#latest').textContent.includes('misses')")
        assert watched.cells() != before
        assert re.search(r"900 tokens, [\d.]+ tokens/s, [\d.]+ % hits", page.inner_text(".foot"))
        watched.until("$('#hit_rate').textContent.includes('%')")
        watched.until("$('#requests').textContent === 'idle'")


def test_nothing_flashes_for_those_who_asked_for_less_motion(browser: Any, address: str) -> None:
    for motion, flashes in (("reduce", False), ("no-preference", True)):
        with opened(browser, address, reduced_motion=motion) as watched:
            watched.until("map.resident")
            watched.answer("Hello")
            watched.until("map.turns.every(Boolean)")
            assert watched.page.evaluate("map.flashed.some(Number.isFinite)") is flashes


def test_a_page_that_is_not_seen_looks_at_nothing(
    browser: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diskmoe.engine.server.live.MOST_WATCHERS", 1)
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )

    def place_is_free() -> bool:
        with httpx.stream("GET", f"{address}/live", timeout=30) as reply:
            return reply.status_code == 200

    with opened(browser, address) as watched:
        watched.until("map.resident")
        assert not place_is_free()
        watched.page.evaluate(hide, True)
        for _ in range(100):
            watched.page.wait_for_timeout(50)
            if place_is_free():
                break
        else:
            pytest.fail("it still looks")
        watched.page.evaluate("now = null")
        watched.page.evaluate(hide, False)
        watched.until("now")
        watched.complaints.clear()  # the browser's own line, where it came back too soon


def test_markup_of_a_model_stays_text(browser: Any, address: str) -> None:
    hostile = (
        "<img src=x onerror=alert(1)><script>alert(2)</script>**<b>bold</b>** [a](javascript:x)"
    )
    chunks = [
        {"choices": [{"delta": {"reasoning_content": "<i>hm</i>"}, "finish_reason": None}]},
        {
            "choices": [
                {
                    "delta": {"content": hostile + "\n\n1. one\n   - a\n2. two\n\n```\n<hr>\n```"},
                    "finish_reason": "stop",
                }
            ]
        },
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    with opened(browser, address) as watched:
        page = watched.page
        page.route(
            "**/v1/chat/completions",
            lambda route: route.fulfill(body=body, content_type="text/event-stream"),
        )
        shown = watched.answer("<u>mine</u>")
        assert "<img src=x onerror=alert(1)>" in shown and "<b>bold</b>" in shown
        assert page.inner_text(".turn.user") == "<u>mine</u>"
        assert page.inner_text(".words pre") == "<hr>"
        assert page.locator(".turn :is(img, script, b, i, u, hr, a, iframe)").count() == 0
        assert page.locator(".words strong").count() == 1
        assert page.evaluate("all('.words li').map((item) => item.value)") == [1, 0, 2]
        assert page.locator(".words .dot").count() == 1
        assert page.inner_text(".thoughts summary") == "Thinking"


@pytest.mark.usefixtures("unhurried")
def test_keys_send_break_stop_and_read(browser: Any, address: str) -> None:
    with opened(browser, address) as watched:
        page = watched.page
        page.focus("#text")
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Enter")
        assert page.inner_text(".turn.user") == "one\ntwo"
        watched.until("$('.turn.assistant .words').textContent")
        page.keyboard.press("Escape")
        watched.until("$('.turn.assistant .foot')?.textContent.includes('stopped')")
        assert page.is_hidden("#stop") and page.is_visible("#send")
        page.focus("canvas")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.inner_text("#cell").startswith("Layer 1, expert 1: ")
        page.keyboard.press("Escape")
        assert page.inner_text("#cell").startswith("Point at a cell")


def test_what_the_server_refuses_is_shown_as_it_says_it(browser: Any, address: str) -> None:
    with opened(browser, address) as watched:
        page = watched.page
        long = "x" * 3000
        page.fill("#text", long)
        page.keyboard.press("Enter")
        watched.until("$('.fault')")
        assert "CTX is 1024" in page.inner_text(".fault")
        assert page.input_value("#text") == long  # to be mended
        watched.complaints.clear()  # the browser's own line about a status of 400


def test_the_key_is_asked_for_and_kept_in_the_tab_alone(browser: Any, desk: Desk) -> None:
    server, address, thread = listen(Server(desk, Rules(api_key="secret")).app)
    try:
        with opened(browser, address) as watched:
            page = watched.page
            page.wait_for_selector("#door[open]")
            assert "API key is missing" in page.inner_text("#door-said")
            page.fill("#key", "wrong")
            page.keyboard.press("Enter")
            watched.until("!$('#key').value && $('#door').open")  # asked once more
            page.fill("#key", "secret")
            page.keyboard.press("Enter")
            watched.until("$('#model').textContent.includes('tiny')")
            assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
            assert watched.answer("Hello")
            page.reload()
            watched.until("$('#model').textContent.includes('tiny')")
            another = watched.context.new_page()
            another.goto(address)
            another.wait_for_selector("#door[open]")
            watched.complaints.clear()  # the browser's own lines about 401
    finally:
        server.should_exit = True
        thread.join(10)


def test_a_phone_has_one_side_at_a_time_and_no_scroll_sideways(browser: Any, address: str) -> None:
    with opened(browser, address, viewport=PHONE, has_touch=True, color_scheme="dark") as watched:
        page = watched.page
        assert page.is_visible("#text") and page.is_hidden("canvas")
        page.click("#views button >> nth=1")
        assert page.is_hidden("#text") and page.is_visible("canvas")
        watched.until("$('#summary').textContent.includes('in memory')")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        box = page.locator("canvas").bounding_box()
        page.touchscreen.tap(box["x"] + 40, box["y"] + 4)
        assert page.inner_text("#cell").startswith("Layer 0, expert ")


def feed(layers: list[int], experts: int) -> str:
    """A moment of a large model: every third expert is resident, each layer has used eight."""
    rng = np.random.default_rng(5)
    used = np.zeros((len(layers), experts), bool)
    for row in used:
        row[rng.choice(experts, 8, replace=False)] = True
    resident = np.arange(used.size).reshape(used.shape) % 3 == 0

    def packed(bits: np.ndarray) -> str:
        return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()

    none = dict.fromkeys(("read_wait_seconds", "compute_seconds", "other_seconds"), 0.0) | {
        "drafts": {},
        "tok_per_s": None,
        "hit_rate": None,
        "bytes_per_token": None,
    }
    about = {
        "name": "large", "family": "kimi_k2", "layers": 61, "experts": experts, "top_k": 8,
        "expert_format": "q4", "budget_bytes": 1 << 34, "moe_layers": layers, "parallel": 2,
    }  # fmt: skip
    now = {
        "running": 1, "waiting": 0, "resident_bytes": 1 << 33, "slots": int(resident.sum()),
        "recent": none, "total": none, "turns": [1] * len(layers), "resident": packed(resident),
        "hits": packed(used & resident), "misses": packed(used & ~resident),
    }  # fmt: skip
    return "".join(f"data: {json.dumps(each)}\n\n" for each in ({"model": about}, {"now": now}))


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize(
    ("layers", "experts"), [(60, 384), (58, 256), (94, 128), (24, 32), (3, 8), (0, 0)]
)
def test_any_shape_of_model_has_a_map_that_fits(
    browser: Any, address: str, layers: int, experts: int, screen: dict[str, int]
) -> None:
    watched = Watched(browser, viewport=screen)
    body = feed(list(range(1, layers + 1)), experts)
    watched.page.route(
        "**/live", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    try:
        page = watched.page
        page.goto(address)
        if screen is PHONE:
            page.click("#views button >> nth=1")
        watched.until("$('#summary').textContent")
        if not layers:
            assert "has none" in page.inner_text("#summary") and page.is_hidden("canvas")
            return
        box, room = page.locator("canvas").bounding_box(), page.locator("#plane").bounding_box()
        assert 60 < box["width"] <= room["width"] and box["height"] > 20
        page.focus("canvas")
        for key in ("Home", "End", "PageDown", *["PageDown"] * 9):
            page.keyboard.press(key)
        assert page.inner_text("#cell").startswith(f"Layer {layers}, expert {experts - 1}: ")
        cursor = page.locator("#cursor").bounding_box()
        assert (
            box["x"] <= cursor["x"] + 2
            and cursor["x"] + cursor["width"] <= box["x"] + box["width"] + 3
        )
        assert cursor["y"] + cursor["height"] <= box["y"] + box["height"] + 3
        assert not watched.complaints
    finally:
        watched.context.close()
