"""Templates, tokenizers and filters against transformers, live."""

import random
from datetime import datetime

import chat_talks
import chat_templates
import numpy as np
import pytest
import toy_tokenizers
from jinja2 import TemplateError

from diskmoe.engine.errors import BadRequest
from diskmoe.engine.sampling import Sampler, Sampling
from diskmoe.engine.text.template import ChatTemplate
from diskmoe.engine.text.tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.role|upper }}: {{ m.content|trim }}\n"
    "{% generation %}{{ eos_token }}{% endgeneration %}{% endfor %}"
    "{{ tools|tojson(indent=2) if tools }}{{ strftime_now('%Y') }}"
)


@pytest.fixture
def directory(tmp_path):
    """A byte-level toy with named tokens."""
    backend = toy_tokenizers.byte_level_tokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [chat_templates.CHATML, chat_templates.GLM, chat_templates.QWEN, PLAIN],
    ids=["ml", "glm", "qwen", "-"],
)
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}, {"tools": [{"name": "é<"}]}])
@pytest.mark.parametrize("begun", [True, False])
def test_a_template_renders_as_in_transformers(directory, text, options, begun):
    (directory / "chat_template.jinja").write_text(text, encoding="utf-8", newline="")
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = ChatTemplate.load(directory, clock=datetime.now)
    assert ours is not None

    for messages in (chat_templates.QUESTION, chat_templates.TALK):
        rendered = ours.render(messages, add_generation_prompt=begun, **options)
        assert rendered == theirs.apply_chat_template(
            messages, add_generation_prompt=begun, tokenize=False, **options
        )
        ids = theirs.apply_chat_template(messages, add_generation_prompt=begun, **options)
        tokenizer = load_tokenizer(directory, 500)
        assert tokenizer is not None
        assert tokenizer.encode(rendered) == ids["input_ids"]


@pytest.mark.parametrize("name", sorted({name for name, _, _ in chat_talks.cases()}))
def test_templates_of_the_families_render_as_in_transformers(tmp_path, name):
    text = (chat_talks.GOLDEN / f"{name}.jinja").read_text(encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text(text, encoding="utf-8", newline="")
    saved = transformers.PreTrainedTokenizerFast(
        tokenizer_object=toy_tokenizers.byte_level_tokenizer(), **chat_talks.TOKENS
    )
    saved.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = ChatTemplate.load(tmp_path)
    assert ours is not None
    rendered = 0
    for _, talk, number in (case for case in chat_talks.cases() if case[0] == name):
        options = {"add_generation_prompt": True, **chat_talks.OPTIONS[number]}
        try:
            text = theirs.apply_chat_template(chat_talks.TALKS[talk], tokenize=False, **options)
        except (TemplateError, TypeError):
            with pytest.raises(BadRequest):
                ours.render(chat_talks.TALKS[talk], **options)
        else:
            assert ours.render(chat_talks.TALKS[talk], **options) == text, (talk, number)
            rendered += 1
    assert rendered > 20


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("config", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_text_is_encoded_as_in_transformers(tmp_path, kind, config):
    names = {
        "byte_level": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        "sentencepiece": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    }
    backend = getattr(toy_tokenizers, f"{kind}_tokenizer")()
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names[kind], **config)
    saved.save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path, 500)
    assert ours is not None

    chance = random.Random(0)
    parts = [*"abc Paris\n\t  1é漢🙂!", "<|im_end|>", "</s>", "Hello", "<think>"]
    for _ in range(300):
        text = "".join(chance.choices(parts, k=chance.randint(0, 12)))
        for special in (True, False):
            expected = theirs(text, add_special_tokens=special)["input_ids"]
            got = ours.encode(text, special=special)
            doubled = special and ours.prefix_ids and expected[1:2] == list(ours.prefix_ids)
            assert got == (expected[1:] if doubled else expected), text


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.7},
        {"top_k": 20},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"temperature": 1.4, "top_k": 60, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_filters_leave_what_transformers_leaves(filters):
    logits = np.random.default_rng(1).normal(0, 2, 1000).astype(np.float32)
    config = transformers.GenerationConfig(do_sample=True, **{"top_k": 0, **filters})
    classes = transformers.generation.logits_process
    warpers = [
        classes.TemperatureLogitsWarper(config.temperature or 1.0),
        *([classes.TopKLogitsWarper(config.top_k)] if config.top_k else []),
        *([classes.TopPLogitsWarper(filters["top_p"])] if "top_p" in filters else []),
        *([classes.MinPLogitsWarper(filters["min_p"])] if "min_p" in filters else []),
    ]
    scores = torch.from_numpy(logits)[None].double()
    for warper in warpers:
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
    expected = torch.softmax(scores[0], -1).numpy()

    ids, probs = Sampler(Sampling(**{"temperature": 1.0, **filters}), 1000).probabilities(logits)

    assert ids.tolist() == np.flatnonzero(expected).tolist()
    assert probs == pytest.approx(expected[ids], rel=1e-9)
