"""Chat templates that would take all time or memory end soon, with one line."""

import time

import pytest
from chat_templates import CHATML, QUESTION, QWEN, TALK

from diskmoe.engine.errors import BadModel, DiskMoeError
from diskmoe.engine.text import bounds


def doubling(step: str) -> str:
    """A template that applies `step` to ns.s 99 times and prints the result."""
    return (
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}"
        + step
        + "{% endfor %}{{ ns.s|length }}{{ ns.s }}"
    )


HARMFUL = {
    "a range of 10^9": "{% for a in range(10**9) %}{% endfor %}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(90) }}"
    ),
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a loop that calls itself": "{% for m in messages recursive %}{{ loop([m, m]) }}{% endfor %}",
    "much text in a loop": "{% for a in range(99999) %}" + "x" * 9999 + "{% endfor %}",
    "a long product": "{{ 'a' * 10**10 }}",
    "a long product of a list": "{{ [1] * 10**10 }}",
    "a long product from the left": "{% set x = 10**10 * 'a' %}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a product of powers": "{% set ns = namespace(s=9) %}{% for i in range(99) %}"
    "{% set ns.s = ns.s * ns.s %}{% endfor %}",
    "a rounding to 10^9 places": "{{ 5|round(-1000000000) }}",
    "a wide column": "{{ 'a'.center(10**10) }}",
    "a wide filter": "{{ 'a'|center(10**10) }}",
    "a wide indentation": "{{ 'a\nb'|indent(10**9) }}",
    "wide JSON": "{{ [1]|tojson(indent=10**9) }}",
    "long separators in JSON": "{{ ([1] * 9999)|tojson(separators=('x' * 9999, 'y')) }}",
    "a wide percent format": "{{ '%1000000000d' % 1 }}",
    "a wide percent filter": "{{ '%1000000000d'|format(1) }}",
    "a wide format": "{{ '{:>1000000000}'.format(1) }}",
    "a computed format": "{{ '{:>{}}'.format(1, 10**9) }}",
    "a computed percent format": "{{ '%*d' % (10**9, 1) }}",
    "expanded tabs": "{{ '\t'.expandtabs(10**9) }}",
    "bytes of a number": "{{ (5).to_bytes(10**10, 'big') }}",
    "joined with ~": doubling("{% set ns.s = ns.s ~ ns.s %}"),
    "joined with +": doubling("{% set ns.s = ns.s + ns.s %}"),
    "joined by a block": doubling("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
    "lists in lists": doubling("{% set ns.s = [ns.s, ns.s] %}"),
    "dictionaries in dictionaries": doubling("{% set ns.s = {'a': ns.s, 'b': ns.s} %}"),
    "views of dictionaries": doubling("{% set ns.s = [dict(a=ns.s).items(), ns.s] %}"),
    "tuples in tuples": doubling("{% set ns.s = (ns.s, ns.s) %}"),
    "replaced": doubling("{% set ns.s = ns.s.replace('a', ns.s) %}"),
    "replaced by a filter": doubling("{% set ns.s = ns.s|replace('a', ns.s) %}"),
    "joined by a method": doubling("{% set ns.s = ns.s.join([ns.s, ns.s]) %}"),
    "joined by a filter": doubling("{% set ns.s = [ns.s, ns.s]|join('-') %}"),
    "formatted": doubling("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
    "formatted with %": doubling("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
    "many large values": "{% set x = 'a' * 16000000 %}{% for i in range(999) %}"
    "{% set y = x ~ i %}{% endfor %}",
    "a slow search": "{{ ('a' * 8000000).rfind('b' + 'a' * 4000000) }}",
    "a wide column of escaped text": "{{ ('a'|e).center(10**10) }}",
    "replaced by a filter with names": doubling("{% set ns.s = ns.s|replace(new=ns.s, old='a') %}"),
    "joined by a long separator": "{{ (['a'] * 99999)|join('x' * 99999) }}",
    "joined by attribute": "{{ ([{'a': 1}] * 99999)|join('x' * 99999, attribute='a') }}",
    "many large slices": "{% set x = 'a' * 16000000 %}" + "{% set y = x[1:] %}" * 99,
    "lists summed up": "{{ [[1], [2]]|sum(start=[]) }}",
    "deep brackets": "{{ " + "(" * 5000 + " }}",
    "deep lists": "{{ " + "[" * 150 + "]" * 150 + " }}",
    "deep loops": "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "a number of 100,000 digits": "{{ " + "9" * 100000 + " }}",
    "Python's classes": "{{ ''.__class__.__mro__ }}",
    "Python's classes by filter": "{{ ''|attr('__class__') + '' }}",
    "Python's classes by format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "changing the messages": "{{ messages.append(1) }}",
    "a date format that grows": "{{ strftime_now('%99999999d') }}",
}


@pytest.mark.parametrize("text", HARMFUL.values(), ids=HARMFUL.keys())
def test_a_harmful_template_ends_soon_with_one_line(load, monkeypatch, text):
    monkeypatch.setattr(bounds, "MOST_STEPS", 20_000)
    began = time.process_time()

    with pytest.raises(DiskMoeError) as caught:
        load(text).render(QUESTION)

    assert "\n" not in str(caught.value)
    assert "chat_template.jinja: the chat template" in str(caught.value)
    assert time.process_time() - began < 5


def test_a_template_that_takes_too_long_is_stopped_by_the_clock(load, monkeypatch):
    monkeypatch.setattr(bounds, "MOST_SECONDS", 0.0)

    with pytest.raises(BadModel, match="takes more than 0 seconds"):
        load(CHATML).render(TALK)


def test_a_namespace_prints_no_contents_that_were_never_measured(load):
    text = doubling("{% set ns.s = namespace(a=ns.s, b=ns.s) %}").replace("{{ ns.s|length }}", "")

    assert load(text).render(QUESTION) == "<Namespace>"


def test_a_long_conversation_is_within_the_bounds(load):
    messages = [TALK[1], TALK[2]] * 500

    assert load(QWEN).render(messages).count("<|im_start|>") == 1001


def test_rendering_twice_starts_with_a_full_budget(load, monkeypatch):
    template = load(CHATML)
    monkeypatch.setattr(bounds, "MOST_STEPS", 30)

    assert [template.render(QUESTION) for _ in range(5)] == [template.render(QUESTION)] * 5
