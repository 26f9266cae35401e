"""The page as it is sent: in the package, of one piece, and held to a strict policy."""

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from tiny_server import listen

from diskmoe.engine.server.app import Server
from diskmoe.engine.server.desk import Desk
from diskmoe.engine.server.page import policy
from diskmoe.engine.server.rules import Rules


def test_the_page_is_sent_with_a_policy_that_names_its_parts(client: httpx.Client) -> None:
    reply = client.get("/")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/html")
    rules = dict(
        rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; ")
    )
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'self'"
    assert "unsafe" not in str(rules)
    for tag in ("script", "style"):
        (part,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", reply.text, re.DOTALL)
        digest = b64encode(sha256(part.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_names_no_other_place_and_makes_no_markup(client: httpx.Client) -> None:
    text = client.get("/").text
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|<(?:iframe|img|object|embed)", text)
    assert not re.search(r"""\s(?:on\w+|style)=["']|javascript:""", text)
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert forbidden not in text
    assert "localStorage" not in text and "cookie" not in text


def test_a_page_without_parts_may_do_nothing() -> None:
    assert "script-src 'none'; style-src 'none'" in policy("<p>Hello</p>")


def test_the_page_is_for_those_who_know_the_servers_name(client: httpx.Client, desk: Desk) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    server, address, thread = listen(Server(desk, Rules(api_key="secret")).app)
    try:  # with a key any name will do, and the page asks for the key itself
        reply = httpx.get(address, headers={"host": "anything"}, timeout=30)
        assert reply.status_code == 200
    finally:
        server.should_exit = True
        thread.join(10)


def test_the_page_is_part_of_the_package(repo_root: Path) -> None:
    data = (repo_root / "pyproject.toml").read_text(encoding="utf-8").split("package-data]")[1]
    assert '"*.html"' in data.split("\n[")[0]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_page_is_only_read(client: httpx.Client, method: str) -> None:
    assert client.request(method, "/").status_code == 405
