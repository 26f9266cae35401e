"""Chat templates as families write them, and talks to render."""

from datetime import datetime
from pathlib import Path

from diskmoe.engine.text.template import ChatTemplate

QUESTION = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "Bye"},
]

CHATML = """\
{% for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
GLM = """\
[gMASK]<sop>
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is sequence -%}
        {%- for part in content if part.type == 'text' %}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        <|assistant|>{{ '\\n' + text(m.content).split('</think>')[-1].strip() }}
    {%- else -%}
        <|{{ m.role }}|>
{{ text(m.content) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if enable_thinking is defined and not enable_thinking }}
{%- endif -%}
"""
QWEN = """\
{%- set ns = namespace(last=0) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' %}
        {%- set ns.last = messages|length - 1 - loop.index0 %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and loop.index0 < ns.last and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def load_from(directory: Path) -> ChatTemplate:
    """The template of a directory that has one, on the fifth of March 2026."""
    template = ChatTemplate.load(directory, clock=lambda: datetime(2026, 3, 5))
    assert template is not None
    return template
