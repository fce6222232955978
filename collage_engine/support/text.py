r"""Text from files as a terminal may show it.

Names in models, sessions and problems are chosen by whoever made the file. A terminal obeys control
characters in them: it would set its title, move its cursor or show another text than is there.
"""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 controls, DEL, C1 controls
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # halves of surrogate pairs, which no encoding can write
    "\ufffe\uffff]"  # no characters, and nothing that XML may hold
)


def printable(text: str, *, keep_lines: bool = False) -> str:
    r"""Return a text with every control character written as an escape, like ``\x1b``.

    Args:
        text: The text, which may come from a file that nobody trusts.
        keep_lines: Whether ends of lines and tabs stay what they are: the caller wrote them. A
            single name has none, and could forge a line of output with one.

    >>> printable("conv\x1b]0;title\x07")
    'conv\\x1b]0;title\\x07'
    """

    def escaped(found: re.Match[str]) -> str:
        character = found.group()
        if keep_lines and character in "\n\t":
            return character
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _CONTROL.sub(escaped, text)


def printable_json(text: str) -> str:
    r"""Return a JSON document with every control character inside its texts as a JSON escape.

    >>> print(printable_json('{"a": "\x9b31m"}'))
    {"a": "\u009b31m"}
    """
    return _CONTROL.sub(
        lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", text
    )
