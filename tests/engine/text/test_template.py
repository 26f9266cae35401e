"""Chat templates: what families write, and templates that mean harm."""

import pytest
from chat_templates import CHATML, GLM, QUESTION, QWEN, TALK, load_from

from diskmoe.engine.errors import BadModel, BadRequest
from diskmoe.engine.text import template as template_module
from diskmoe.engine.text.template import ChatTemplate

# What families write


def test_chatml_is_rendered_with_the_answer_begun(load):
    assert load(CHATML).render(QUESTION) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert load(CHATML).render(QUESTION, add_generation_prompt=False) == (
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_a_glm_template_reads_texts_and_lists_of_parts(load):
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]

    assert load(GLM).render(parts) == "[gMASK]<sop><|user|>\na<|assistant|>"
    assert load(GLM).render(TALK) == (
        "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\nHello<|user|>\nBye<|assistant|>"
    )


def test_options_reach_the_template(load):
    assert (
        load(QWEN)
        .render(QUESTION, enable_thinking=False)
        .endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    )
    assert load(QWEN).render(QUESTION).endswith("<|im_start|>assistant\n")
    assert "hm" not in load(QWEN).render(TALK)


def test_tokens_of_the_config_are_variables_whether_text_or_dictionary(load):
    template = load(
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}",
        bos_token={"content": "<s>", "lstrip": False},
        eos_token="</s>",
        pad_token=None,
    )

    assert template.render(QUESTION) == "<s></s>False"


def test_keys_that_hold_none_are_no_keys(load):
    text = "{% for m in messages %}{{ m.content is defined }}{{ 'tool_calls' in m }} {% endfor %}"
    messages = [{"role": "assistant", "content": None, "tool_calls": None}, *QUESTION]

    assert load(text).render(messages) == "FalseFalse TrueFalse "


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_the_names_that_templates_read(load, name):
    message = {"role": "assistant", "content": "Hello", name: "hm"}
    text = "{{ messages[0].reasoning_content }}/{{ messages[0].thinking }}"

    assert load(text).render([message]) == "hm/hm"
    assert load(text).render([{**message, "thinking": "other"}]).endswith("/other")
    assert load(text).render([{**message, name: None}]) == "/"


def test_tojson_keeps_letters_and_html_signs(load):
    tools = [{"name": "find", "about": "é <b> & 'q'"}]

    assert load("{{ tools[0]|tojson }}").render(QUESTION, tools=tools) == (
        '{"name": "find", "about": "é <b> & \'q\'"}'
    )
    assert load("{{ {'a': [1]}|tojson(indent=1) }}").render(QUESTION) == ('{\n "a": [\n  1\n ]\n}')


def test_safe_adds_no_escaping_to_what_follows(load):
    assert load("{{ 'a'|safe + '<&>' }}").render(QUESTION) == "a<&>"


def test_the_date_loop_controls_and_generation_are_known(load):
    text = (
        "{{ strftime_now('%d %b %Y') }}{% for i in range(9) %}{% if i == 1 %}{% continue %}"
        "{% elif i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}[{{ messages[0].content }}]{% endgeneration %}"
    )

    assert load(text).render(QUESTION) == "05 Mar 202602[Hi]"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}/{{ loop.length }} {% endfor %}",
         "12/2 34/2 "),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{{ messages|map(attribute='content')|join(', ') }}", "Hi"),
        ("{% for k, v in {'x': 1}|items %}{{ k }}={{ v }}{% endfor %}", "x=1"),
        ("{% for k, v in {'x': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "x=1"),
        ("{{ {'x': 1}|items|first }}{{ [3, 1, 2]|sort }}{{ 'abc'[1:] }}", "('x', 1)[1, 2, 3]bc"),
        ("{{ 'aXa'|replace('a', 'b') }}{{ 'a'|replace(old='a', new='c') }}", "bXbc"),
        ("{% set x %}a{{ 'b' }}{% endset %}{{ x|trim|upper }}", "AB"),
        ("{{ '%s-%02d'|format('a', 7) }}{{ '{}'.format(3) }}{{ '%s' % 4 }}", "a-0734"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
        ("{{ 'x'.join(['a', 'b']) }}{{ 'aXb'.replace('X', '-') }}{{ 'a b'.split()[-1] }}",
         "axba-bb"),
        ("{% macro m(x, y=2) %}{{ x * y }}{% endmacro %}{{ m(3) }}{{ m('ab') }}", "6abab"),
        ("{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
         "123"),
        ("{{ none }}{{ true }}{{ missing }}{{ missing is none }}", "NoneTrueFalse"),
        ("{{ messages[0]|tojson|length }}{{ messages[0].get('name', 'no') }}", "33no"),
    ],
)  # fmt: skip
def test_everyday_jinja_works_inside_the_bounds(load, text, written):
    assert load(text).render(QUESTION) == written


# Where templates lie


def test_a_directory_without_a_template_has_none(make_directory):
    assert ChatTemplate.load(make_directory(None, config={"bos_token": "<s>"})) is None


def test_chat_template_jinja_wins_over_the_config(make_directory):
    directory = make_directory(None, config={"chat_template": "config"}, template="file")

    assert load_from(directory).render(QUESTION) == "file"
    assert load_from(directory).source == "chat_template.jinja"


def test_of_named_templates_the_one_for_tools_is_used_with_tools(make_directory):
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools {{ tools|length }}"},
    ]
    template = load_from(make_directory(None, config={"chat_template": named}))

    assert template.render(QUESTION) == "plain"
    assert template.render(QUESTION, tools=[{"name": "find"}]) == "tools 1"


def test_additional_templates_are_found_beside_the_first(make_directory):
    directory = make_directory(None, template="plain")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("tools")

    template = load_from(directory)

    assert template.render(QUESTION) == "plain"
    assert template.render(QUESTION, tools=[]) == "tools"


def test_named_templates_without_a_default_are_listed(make_directory):
    named = [{"name": name, "template": "x"} for name in ("rag", "tool_use")]

    with pytest.raises(BadModel, match="rag, tool_use, none of them is called default"):
        load_from(make_directory(None, config={"chat_template": named}))


@pytest.mark.parametrize("value", [3, True, ["x"], [{"name": "default"}], {"default": 1}])
def test_a_template_that_is_no_text_is_a_bad_model(make_directory, value):
    with pytest.raises(BadModel, match="neither a text nor a list of named texts"):
        load_from(make_directory(None, config={"chat_template": value}))


def test_a_template_that_is_too_long_is_refused(make_directory, monkeypatch):
    monkeypatch.setattr(template_module, "TEMPLATE_LIMIT_BYTES", 3)

    with pytest.raises(BadModel, match="bigger than 3 bytes"):
        load_from(make_directory(None, template="long"))
    (make_directory(None) / "chat_template.jinja").unlink()
    with pytest.raises(BadModel, match="longer than 3 characters"):
        load_from(make_directory(None, config={"chat_template": "long"}))


# Errors


def test_a_refusal_is_a_bad_request_with_the_templates_words_and_line(load):
    template = load("a\n{% if messages[0].role != 'system' %}{{ raise_exception('No\nuser!') }}"
                    "{% endif %}")  # fmt: skip

    with pytest.raises(BadRequest, match=r"line 2, refuses these messages: No user!"):
        template.render(QUESTION)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\n\n{{ messages[9].content + 'x' }}", 3), ("{{ 'a' + 1 }}", 1), ("\n{% include 'x' %}", 2)],
)
def test_an_error_inside_names_the_line(load, text, line):
    with pytest.raises(BadRequest, match=rf"line {line}, cannot render these messages: ") as caught:
        load(text).render(QUESTION)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [("a\n{% if %}", 2), ("{{ 'a'|nosuch }}", 1), ("\n\n{% for %}", 3), ("{{ 1 +", 1)],
)
def test_a_template_that_is_not_jinja_is_a_bad_model_with_its_line(load, text, line):
    with pytest.raises(BadModel, match=rf"chat_template.jinja: the chat template, line {line}, "):
        load(text)


@pytest.mark.parametrize("messages", ["Hi", [], [3], [{"content": "x"}], [{"role": 3}], None, {}])
def test_messages_that_are_no_conversation_are_a_bad_request(load, messages):
    with pytest.raises(BadRequest, match="messages"):
        load(CHATML).render(messages)


# Templates that mean harm


# The end of a turn


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        (CHATML, "<|im_end|>\n"),
        (GLM, None),
        ("{{ raise_exception('no') }}", None),
        ("{% for m in messages %}{{ m.content }}{% if loop.last %}</s>{% endif %}{% endfor %}", "</s>"),
    ],
)  # fmt: skip
def test_what_follows_an_answer_is_the_end_of_turn(load, text, tail):
    assert load(text).text_after_answer() == tail
