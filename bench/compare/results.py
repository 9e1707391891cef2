"""The document: what was measured, where, with which versions. Pure, but for reading and writing
it."""

import datetime
from pathlib import Path

from compare import lines
from compare.lines import Mismatch  # noqa: F401


def key_of(result):
    return f"{result['op']} {result['dtype']} {result['rows']}x{result['n']}"


class Document:
    """Results by case, written after every case, so that nothing is lost and a later run goes
    on."""

    def __init__(self, path, content=None):
        self.path = Path(path)
        self.content = content or {"results": []}
        self._places = {key_of(r): i for i, r in enumerate(self.content["results"])}

    @classmethod
    def load(cls, path):
        return cls(path, lines.read(path))

    @classmethod
    def open(cls, path, fresh=False):
        """The document of this path, which need not exist yet."""
        return cls(path) if fresh or not Path(path).exists() else cls.load(path)

    @property
    def results(self):
        return self.content["results"]

    def describe(self, kind, library, machine, against=None, preset=None, suite=None):
        """Says what is measured. Results of another kind, build or device are not mixed with these.
        against: the build that is timed beside."""
        named = (("against", against), ("preset", preset), ("suite", suite))
        for name, value in (("kind", kind), ("library", library), ("device", machine.get("device")),
                            *named):
            before = self.content.get(name)
            if self.results and before is not None and before != value:
                raise Mismatch(
                    f"{self.path} has results of another {name}; name another file, or --fresh"
                )
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.content.update(kind=kind, library=library, device=machine.get("device"))
        self.content.update({k: v for k, v in named if v is not None})
        self.content.setdefault("runs", []).append({"date": now, **machine})

    def find(self, case):
        place = self._places.get(case.key)
        return None if place is None else self.results[place]

    def add(self, result):
        """Adds a result, in the place of an earlier one of the same case."""
        key = key_of(result)
        if key in self._places:
            self.results[self._places[key]] = result
        else:
            self._places[key] = len(self.results)
            self.results.append(result)

    def missing(self, cases, wanted=()):
        """The cases of which there is no result, or none that has anything to say of all contenders
        in `wanted`."""
        return [
            c
            for c in cases
            if self.find(c) is None or not set(wanted) <= set(self.find(c).get("contenders", {}))
        ]

    def write(self):
        lines.write(self.path, self.content)
