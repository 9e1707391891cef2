"""An extension of griffe: the docstring of a class lists its fields with their comments.

    eps: float = 0.0  # added to the mean of squares

The comment stands behind the field, or in whole lines before it."""

import re

import griffe


def comment(lines, first, last):
    """The comment of a field that is on these lines, counted from 0."""
    behind = re.search(r"  # (.*)$", lines[last])
    if behind:
        return behind[1].strip()
    found = []
    while first > 0 and re.match(r"\s*# ", lines[first - 1]):
        first -= 1
        found.insert(0, lines[first].strip()[2:])
    return " ".join(found)


def fields(cls, lines):
    """"Attributes:" of a docstring: the fields of a class that have comments."""
    for member in cls.members.values():
        if member.is_attribute and not member.docstring and member.lineno:
            text = comment(lines, member.lineno - 1, member.endlineno - 1)
            if text:
                value = str(member.value) if member.value is not None else "None"
                default = f" Default: `{value}`." if value != "None" else ""
                yield f"    {member.name}: {text[:1].upper()}{text[1:]}.{default}"


class FieldComments(griffe.Extension):
    def on_class(self, *, cls, loader, **_):
        listed = list(fields(cls, loader.lines_collection[cls.filepath]))
        if listed and cls.docstring:
            cls.docstring.value += "\n\nAttributes:\n" + "\n".join(listed)
