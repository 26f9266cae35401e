"""The formats of strings, as patterns. None: a remark of OpenAPI that asks nothing of a text.

Days fit their months (29 February any year), hours and minutes their clocks.
"""

from __future__ import annotations

_DATE = (
    r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)"
    r"|02-(0[1-9]|1\d|2[0-%s]))"
)
_DAY = _DATE % "8"
_LEAP = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DATE = rf"({_DAY}|{_LEAP})"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_OCTET = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LAST = rf"({_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [rf"({_H16}:){{6}}{_LAST}", rf"::({_H16}:){{5}}{_LAST}"]
    + [
        rf"({_H16}(:{_H16}){{0,{n}}})?::{tail}"
        for n, tail in enumerate(
            (*(rf"({_H16}:){{{k}}}{_LAST}" for k in (4, 3, 2, 1)), _LAST, _H16, "")
        )
    ]
)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_DOMAIN = r"[A-Za-z0-9]+(-+[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-+[A-Za-z0-9]+)*)*"
_EMAIL = rf"{_ATOM}(\.{_ATOM})*@({_DOMAIN}|\[({_IPV4}|IPv6:({_IPV6}))\])"
_UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_PCHAR = r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_NOCOLON = r"([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_NAME = r"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_USER = r"([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*"
_AUTHORITY = rf"//({_USER}@)?(\[({_IPV6})\]|{_NAME})(:\d*)?(/{_PCHAR}*)*"
_TAIL = rf"(\?({_PCHAR}|[/?])*)?(#({_PCHAR}|[/?])*)?"
_PATH = rf"/({_PCHAR}+(/{_PCHAR}*)*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:({_AUTHORITY}|{_PATH}|{_PCHAR}+(/{_PCHAR}*)*|){_TAIL}"
_RELATIVE = rf"({_AUTHORITY}|{_PATH}|{_NOCOLON}+(/{_PCHAR}*)*|){_TAIL}"
_CLOCK = r"T(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_DAYS = r"(\d+Y(\d+M(\d+D)?)?|\d+M(\d+D)?|\d+D)"
_DURATION = rf"P({_DAYS}({_CLOCK})?|{_CLOCK}|\d+W)"
_POINTER = r"(/([^/~]|~[01])*)*"

FORMATS: dict[str, str | None] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"{_URI}|{_RELATIVE}",
    "uuid": _UUID,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "int32": None,
    "int64": None,
    "float": None,
    "double": None,
    "password": None,
    "binary": None,
    "byte": None,
}


def pattern_of(name: str) -> str:
    """The whole text of a format, anchored."""
    return f"^({FORMATS[name]})$"
