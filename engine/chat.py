"""``diskmoe chat``: questions from the keyboard, answers as they come, commands that begin with ``/``.

stdout carries the answers and nothing else; what is asked, said and measured goes to stderr. Ctrl-C
stops an answer and keeps the conversation; at an empty line, it or Ctrl-D ends the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diskmoe.engine.chat_file import load_chat, save_chat
from diskmoe.engine.conversation import Conversation, Turn
from diskmoe.engine.errors import BadGrammar, BadModel, BadRequest, DiskMoeError
from diskmoe.engine.opening import opening, say_notes
from diskmoe.engine.places import as_path, state_dir
from diskmoe.engine.report import report_lines
from diskmoe.engine.run import (
    MOST_TEXT,
    form_from,
    prefill_progress,
    sampling_from,
    say_without_effect,
    stop_strings,
)
from diskmoe.engine.setting_sources import Value
from diskmoe.engine.setting_values import did_you_mean
from diskmoe.engine.stats import RunStats
from diskmoe.experts.budget import shown_bytes

Say = Callable[[str], None]

COMMANDS: Mapping[str, str] = {
    "/reset": "forget the conversation",
    "/regen": "answer the last question again",
    "/system": "TEXT: the system message from now on; without TEXT none",
    "/stats": "the full report of the last answer",
    "/save": "[FILE] write the conversation to disk",
    "/load": "[FILE] go on with one that was saved",
    "/help": "these lines",
    "/quit": "leave; so does Ctrl-D",
}
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
ANSWER_TOKENS = 2048  # tokens of an answer, where NGEN does not say it
_PROGRESS_TOKENS = 200  # of a prompt's new part, from which on its progress is told


class Chat:
    """The program once a model is loaded. ask: the next line, None at the end of input."""

    def __init__(
        self,
        talk: Conversation,
        how: Mapping[str, Any],  # of Model.generate
        saved: Callable[[], Path],  # where a chat without a name is kept
        fingerprint: Callable[[], str],
        ask: Callable[[], str | None],
        write: Say,
        say: Say,
        dims: bool,
    ) -> None:
        self._talk = talk
        self._how = dict(how)
        self._saved = saved
        self._fingerprint = fingerprint
        self._ask = ask
        self._write = write
        self._say = say
        self._dims = dims
        self._latest: RunStats | None = None

    def run(self) -> None:
        """Until the end of input or /quit."""
        while True:
            try:
                line = self._ask()
            except KeyboardInterrupt:
                return
            if line is None:
                return
            if not line.strip():
                continue
            try:
                if line.startswith("/"):
                    if not self._command(*line.split(maxsplit=1)):
                        return
                else:
                    self._answer(line)
            except BadModel:
                raise
            except (DiskMoeError, BadGrammar) as error:
                self._say("error: " + " ".join(str(error).split()))

    def _answer(self, question: str) -> None:
        turn = self._talk.ask(question, **self._how)
        try:
            for reasoning, text in turn:
                self._show(reasoning, text)
        except KeyboardInterrupt:
            for reasoning, text in turn.stop("interrupted"):
                self._show(reasoning, text)
        self._write("\n")
        self._latest = turn.stats
        self._say(turn_line(turn))

    def _show(self, reasoning: bool, text: str) -> None:
        self._write(f"{_DIM}{text}{_PLAIN}" if reasoning and self._dims else text)

    def _command(self, word: str, rest: str = "") -> bool:
        """Does what a line that begins with / says; whether the chat goes on."""
        if word == "/quit":
            return False
        if word == "/help":
            for name, what in COMMANDS.items():
                self._say(f"  {name:<9}{what}")
        elif word == "/reset":
            self._talk.messages.clear()
            self._say("reset     the conversation is empty")
        elif word == "/system":
            self._talk.system = rest.strip() or None
            self._say(f"system    {self._talk.system or 'none'}")
        elif word == "/regen":
            self._regenerate()
        elif word == "/stats":
            self._stats()
        elif word == "/save":
            path = self._path(rest)
            save_chat(path, self._fingerprint(), self._talk.all_messages)
            self._say(f"saved     {len(self._talk.messages)} messages in {path}")
        elif word == "/load":
            path = self._path(rest)
            self._talk.load(load_chat(path, self._fingerprint()))
            self._say(
                f"loaded    {len(self._talk.messages)} messages of {path}; the next answer reads them"
            )
        else:
            hint = did_you_mean(word, list(COMMANDS))
            self._say(f"error: unknown command {word[:40]}{hint}; /help lists them")
        return True

    def _regenerate(self) -> None:
        question = self._talk.take_back()
        if question is None:
            self._say("error: there is no answer to make again")
            return
        if self._how["sampling"].temperature == 0 or self._how["sampling"].seed is not None:
            self._say("note      without chance, or with a SEED, the answer will be the same")
        self._answer(question)

    def _stats(self) -> None:
        if self._latest is None:
            self._say("stats     nothing was answered yet")
            return
        for line in report_lines(self._latest, self._talk.model.facts):
            self._say(line)

    def _path(self, text: str) -> Path:
        return as_path(text.strip()) if text.strip() else self._saved()


def turn_line(turn: Turn) -> str:
    """What an answer cost, in one line."""
    stats = turn.stats
    decode = stats.decode
    if not stats.tokens:
        return f"-- no token; {stats.stop_reason}"
    parts = [
        f"{stats.tok_per_s:.1f} tok/s",
        f"{stats.tokens_per_forward:.2f} tokens/forward",
    ]
    if decode.hit_rate is not None:
        parts.append(f"hit rate {100 * decode.hit_rate:.0f} %")
        parts.append(f"{shown_bytes(stats.bytes_per_token or 0)}/token")
    fresh = stats.prompt_tokens - stats.reused_tokens
    parts.append(f"{stats.tokens} tokens after {fresh} new and {stats.reused_tokens} known ones")
    return f"-- {', '.join(parts)}; {stats.stop_reason}"


def chat(values: Mapping[str, Value], notes: list[str], say: Say, write: Say) -> int:
    """Loads the model and talks. Returns the exit code.

    Raises:
        DiskMoeError: whatever makes a chat impossible.
    """
    say_notes(values, notes, say)
    say_without_effect(values, say)
    for name in ("PROMPT", "PROMPT_IDS", "JSON", "CHAT"):
        if values[name].value not in (None, False) and values[name].source != "default":
            say(f"note      {name} has no effect on a chat")
    with opening(values, say) as prepared:
        defaults = prepared.text.sampling_defaults
        sampling, values = sampling_from(values, defaults, say, draw_seed=False)
        prepared.text.encode_chat([{"role": "user", "content": "?"}])  # refuses what cannot chat
        form = form_from(values, prepared.text, say)
    from diskmoe.engine.api import Model
    from diskmoe.experts.usage import model_fingerprint

    with Model.finish(prepared, say) as model:

        def fingerprint() -> str:
            return model_fingerprint(model.opened.source.config, model.opened.records.files)

        def saved() -> Path:
            folder = state_dir(values["STATE_DIR"].value) / "chats"
            return folder / f"{fingerprint()}.json"

        how = {
            "sampling": sampling,
            "limit": ANSWER_TOKENS if values["NGEN"].source == "default" else values["NGEN"].value,
            "stop": stop_strings(values),
            "ignore_eos": values["IGNORE_EOS"].value,
            "on_prefill": _long_prompts(say),
            **form,
        }
        talk = Conversation(model, values["SYSTEM"].value)
        say("chat      /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves")
        dims = sys.stdout.isatty()
        Chat(talk, how, saved, fingerprint, _line_of_stdin, write, say, dims).run()
    return 0


def _long_prompts(say: Say) -> Callable[[int, int], None]:
    """Tells how far a prompt is, where it is long."""
    tell = prefill_progress(say)

    def told(done: int, rows: int) -> None:
        if rows >= _PROGRESS_TOKENS and done < rows:
            tell(done, rows)

    return told


def _line_of_stdin() -> str | None:
    """The next line; one that ends in a backslash goes on in the next. BadRequest: it has no end."""
    if sys.stdin is None:  # closed by the caller
        return None
    lines: list[str] = []
    left = MOST_TEXT
    while True:
        if sys.stdin.isatty():
            print("... " if lines else "> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline(left)
        left -= len(line)
        if not left:
            raise BadRequest(f"a line of stdin is longer than {MOST_TEXT} characters")
        if not line:
            return "\n".join(lines) if lines else None
        lines.append(line.rstrip("\r\n"))
        if not lines[-1].endswith("\\"):
            return "\n".join(lines)
        lines[-1] = lines[-1][:-1]
