"""Golden texts of chat templates from transformers: writes ``tests/golden/chat/expected.json``.

``texts`` are what was written, each once; ``cases`` says which for template, talk and options, null
where the template refuses or cannot render the talk. Needs the ``oracle`` extra.

    PYTHONPATH=tests python scripts/make_chat_golden.py
"""

from __future__ import annotations

import json
from datetime import datetime
from unittest import mock

import transformers.utils.chat_template_utils as theirs
from chat_talks import GOLDEN, OPTIONS, TALKS, TODAY, TOKENS, cases
from jinja2 import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **TOKENS)
    texts: dict[str, int] = {}
    found: dict[str, dict[str, list[int | None]]] = {}
    for name, talk, number in cases():
        options = {"add_generation_prompt": True, **OPTIONS[number]}
        template = (GOLDEN / f"{name}.jinja").read_text(encoding="utf-8")
        with mock.patch.object(theirs, "datetime") as clock:
            clock.now.return_value = datetime(*TODAY)
            try:
                text = tokenizer.apply_chat_template(
                    TALKS[talk], chat_template=template, tokenize=False, **options
                )
            except (TemplateError, TypeError):  # the latter where content is a list of parts
                said = None
            else:
                said = texts.setdefault(str(text), len(texts))
        found.setdefault(name, {}).setdefault(talk, []).append(said)
    golden = {"texts": list(texts), "cases": found}
    (GOLDEN / "expected.json").write_text(
        json.dumps(golden, ensure_ascii=False, indent=0) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
