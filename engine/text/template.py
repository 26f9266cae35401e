"""The chat template of a model directory: messages in, prompt text out.

The rule kept here: the text is what ``transformers`` renders, whatever the template is called and
wherever it lies, and a template never does more than make that text (see `sandbox.py`).

    template = ChatTemplate.load(Path("model"))
    text = template.render([{"role": "user", "content": "Hello"}], enable_thinking=False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.text.bounds import TemplateLimit
from diskmoe.engine.text.files import one_line, read_json_object, read_text
from diskmoe.engine.text.sandbox import Sandbox, TemplateRefusal
from diskmoe.engine.text.spelling import token_text

TEMPLATE_LIMIT_BYTES = 1 << 20  # the longest in use are about 30 KB
MOST_TEMPLATES = 64

# What transformers hands to a template besides the conversation.
TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)

# A message's reasoning under each of its names; templates read the first, gpt-oss's the second.
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")

ANSWER_MARK, REASONING_MARK = "diskmoe-answer-mark", "diskmoe-reasoning-mark"


@dataclass(frozen=True)
class ChatTemplate:
    """One model's compiled templates and the special tokens they may name."""

    path: Path
    source: str  # the file, and the template's name when it has one; for notes
    tokens: Mapping[str, Any]  # bos_token, eos_token, ... as text
    templates: Mapping[str, jinja2.Template]  # "default", and others such as "tool_use"
    sandbox: Sandbox

    @staticmethod
    def load(directory: Path, clock: Callable[[], datetime] = datetime.now) -> ChatTemplate | None:
        """The template of a model directory, None when it has none; BadModel when it is broken.

        chat_template.jinja wins over tokenizer_config.json; files in additional_chat_templates/
        and lists of named templates add alternatives. `clock` is for strftime_now.
        """
        config_path = directory / "tokenizer_config.json"
        config = read_json_object(config_path) or {}
        path = directory / "chat_template.jinja"
        text = read_text(path, TEMPLATE_LIMIT_BYTES)
        if text is not None:
            texts = {"default": text}
        else:
            path = config_path
            texts = _from_config(config.get("chat_template"), config_path)
        extra = directory / "additional_chat_templates"
        if extra.is_dir():
            for file in sorted(extra.glob("*.jinja"))[:MOST_TEMPLATES]:
                texts.setdefault(file.stem, read_text(file, TEMPLATE_LIMIT_BYTES) or "")
        if not texts:
            return None
        if "default" not in texts and len(texts) > 1:
            raise BadModel(
                f"{path}: has chat templates {one_line(', '.join(sorted(texts)))}, none of them "
                "is called default"
            )
        sandbox = Sandbox(clock)
        templates = {name: _compile(sandbox, text, path) for name, text in texts.items()}
        return ChatTemplate(path, path.name, _tokens(config), templates, sandbox)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """The prompt text of a conversation.

        `options` are the template's own, such as enable_thinking. Raises BadRequest when the
        messages are no conversation or the template refuses them, BadModel when the template
        goes beyond its bounds; both with the template's line.
        """
        _check_messages(messages)
        template = self._choose(tools is not None)
        variables = {
            **self.tokens,
            "documents": None,
            **options,
            "messages": [_as_given(message) for message in messages],
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "add_generation_prompt": add_generation_prompt,
        }
        self.sandbox.start()
        try:
            return template.render(variables)
        except (TemplateLimit, OverflowError) as error:
            raise BadModel(f"{self._place(error)} {one_line(error)}; it is not used") from None
        except TemplateRefusal as error:
            message = one_line(error) or "without a reason"
            raise BadRequest(f"{self._place(error)} refuses these messages: {message}") from None
        except (RecursionError, MemoryError):
            raise BadModel(f"{self.path}: the chat template calls itself without end") from None
        except Exception as error:  # noqa: BLE001 - anything may come out of foreign code
            raise BadRequest(
                f"{self._place(error)} cannot render these messages: {one_line(error)}"
            ) from None

    def text_after_answer(self) -> str | None:
        """What the template writes after an assistant's last message: its end of turn.

        None when the template cannot say: some refuse the question, some write nothing. One that
        goes beyond its bounds is refused when it is used, and not where only raw text is wanted.
        """
        tail = self._answered({"content": ANSWER_MARK}).rpartition(ANSWER_MARK)[2]
        return tail if tail.strip() else None

    def text_within_answer(self) -> str:
        """What the template writes between an assistant's reasoning and what it says; "" where it
        leaves the reasoning out."""
        text = self._answered({"reasoning_content": REASONING_MARK, "content": ANSWER_MARK})
        _, reasoning, rest = text.rpartition(REASONING_MARK)
        return rest.partition(ANSWER_MARK)[0] if reasoning else ""

    def _answered(self, answer: Mapping[str, Any]) -> str:
        """A question and this answer, which has the answer's mark; "" when the template refuses."""
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", **answer}]
        try:
            text = self.render(turns, add_generation_prompt=False)
        except (BadRequest, BadModel):
            return ""
        return text if ANSWER_MARK in text else ""

    def _choose(self, with_tools: bool) -> jinja2.Template:
        if with_tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.templates.get("default") or next(iter(self.templates.values()))

    def _place(self, error: BaseException) -> str:
        """The file and the line of the template that an error passed through last."""
        line = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(self.path):
                line = trace.tb_lineno
            trace = trace.tb_next
        return f"{self.path}: the chat template" + ("" if line is None else f", line {line},")


def _as_given(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as transformers hands it on: without keys that hold None, which most templates
    would write out, and with its reasoning where the template looks for it."""
    given = {key: value for key, value in message.items() if value is not None}
    reasoning = next((given[name] for name in REASONING_NAMES if name in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _from_config(value: Any, path: Path) -> dict[str, str]:
    """{name: text} of tokenizer_config.json's chat_template."""
    if value is None:
        return {}
    if isinstance(value, str):
        listed: list[Any] = [{"name": "default", "template": value}]
    elif isinstance(value, dict):
        listed = [{"name": name, "template": text} for name, text in value.items()]
    else:
        listed = value if isinstance(value, list) else [value]
    texts: dict[str, str] = {}
    for item in listed[:MOST_TEMPLATES]:
        name = item.get("name") if isinstance(item, dict) else None
        text = item.get("template") if isinstance(item, dict) else None
        if not isinstance(name, str) or not isinstance(text, str):
            raise BadModel(f"{path}: chat_template is neither a text nor a list of named texts")
        if len(text) > TEMPLATE_LIMIT_BYTES:
            raise BadModel(
                f"{path}: chat_template is longer than {TEMPLATE_LIMIT_BYTES} characters"
            )
        texts[name] = text
    return texts


def _tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    tokens: dict[str, Any] = {}
    for name in TOKEN_NAMES:
        text = token_text(config.get(name))
        if text is not None:
            tokens[name] = text
    return tokens


def _compile(sandbox: Sandbox, text: str, path: Path) -> jinja2.Template:
    try:
        return sandbox.compile_bounded(text, str(path))
    except jinja2.TemplateSyntaxError as error:
        raise BadModel(
            f"{path}: the chat template, line {error.lineno}, is not Jinja: {one_line(error.message)}"
        ) from None
    except (RecursionError, MemoryError, SyntaxError, OverflowError, ValueError) as error:
        raise BadModel(
            f"{path}: the chat template does not compile ({type(error).__name__}): nested too "
            "deeply, or a number too long"
        ) from None


def _check_messages(messages: Any) -> None:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise BadRequest("messages must be a list of {role, content}")
    if not messages:
        raise BadRequest("messages is empty: a chat needs at least one")
    for place, message in enumerate(messages):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(role, str) or not role:
            raise BadRequest(f"messages[{place}] has no role")
