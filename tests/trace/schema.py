"""The form of a trace that fastnorm_profile_write_trace writes: Chrome's Trace Event Format, as this library uses it."""

NAMES = (
    "work",
    "load q",
    "load kv",
    "qk",
    "softmax",
    "rescale",
    "write p",
    "pv",
    "write o",
    "merge",
    "wait q",
    "wait kv",
    "wait free",
    "wait scale 0",
    "wait scale 1",
    "wait p 0",
    "wait p 1",
    "wait plan",
)
WAITS = tuple(name for name in NAMES if name.startswith("wait"))
PRODUCTS = ("qk", "pv")  # overlap other work of their warpgroup: async spans


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def metadata_problem(e, named):
    if set(e) != (
        {"ph", "name", "pid", "args"} | ({"tid"} if e["name"] == "thread_name" else set())
    ):
        return f"metadata with the keys {sorted(e)}"
    if e["name"] not in ("process_name", "thread_name") or not isinstance(
        e["args"].get("name"), str
    ):
        return f"metadata {e}"
    named.add((e["pid"], e.get("tid")))
    return ""


def fields_problem(e):
    wanted = {"ph", "name", "pid", "tid", "ts", "args"}
    wanted |= {"cat", "id"} if e["ph"] in "be" else {"s"} if e["ph"] == "i" else set()
    if set(e) != wanted:
        return f"the keys {sorted(e)}; required: {sorted(wanted)}"
    if not (is_whole(e["pid"]) and is_whole(e["tid"])):
        return "pid or tid is no whole number"
    if not isinstance(e["ts"], (int, float)) or isinstance(e["ts"], bool) or e["ts"] < 0:
        return f"ts is {e['ts']}"
    if set(e["args"]) != {"cycle", "value"} or not all(is_whole(v) for v in e["args"].values()):
        return f"args is {e['args']}"
    if e["name"] not in NAMES:
        return f"the name {e['name']!r}"
    if e["ph"] == "i":
        return "" if e["s"] == "t" else f"s is {e['s']!r}"
    if (e["name"] in PRODUCTS) != (e["ph"] in "be"):
        return f"{e['name']} has the phase {e['ph']}"
    return "" if e["ph"] in "BE" or e["cat"] == "tensor" else f"cat is {e['cat']!r}"


class Spans:
    """Begin and end of each warpgroup: nested, and async ones by their ids."""

    def __init__(self):
        self.stacks, self.open_ids, self.clock = {}, set(), {}

    def problem(self, e):
        key = (e["pid"], e["tid"])
        now = (e["ts"], e["args"]["cycle"])
        if now < self.clock.get(key, (0, 0)):
            return f"time goes back from {self.clock[key]} to {now}"
        self.clock[key] = now
        stack = self.stacks.setdefault(key, [])
        if e["ph"] == "B":
            stack.append(e["name"])
        elif e["ph"] == "E":
            if not stack or stack.pop() != e["name"]:
                return f"{e['name']} ends and was not the last to begin"
        elif e["ph"] == "b":
            if (key, e["id"]) in self.open_ids:
                return f"{e['id']} begins twice"
            self.open_ids.add((key, e["id"]))
        elif e["ph"] == "e":
            if (key, e["id"]) not in self.open_ids:
                return f"{e['id']} ends and did not begin"
            self.open_ids.remove((key, e["id"]))
        return ""

    def left_open(self):
        return sum(map(len, self.stacks.values())) + len(self.open_ids)


def problems(trace):
    """What is wrong with a trace, one text each; [] if nothing is."""
    if not isinstance(trace, dict) or set(trace) != {"displayTimeUnit", "traceEvents", "otherData"}:
        return [
            f"the keys of the document are {sorted(trace) if isinstance(trace, dict) else trace}"
        ]
    found, named, spans, count = [], set(), Spans(), 0
    for i, e in enumerate(trace["traceEvents"]):
        if not isinstance(e, dict) or e.get("ph") not in ("M", "B", "E", "b", "e", "i"):
            found.append(f"event {i}: ph is {e.get('ph') if isinstance(e, dict) else e!r}")
            continue
        if e["ph"] == "M":
            why = metadata_problem(e, named)
        else:
            count += 1
            why = fields_problem(e) or spans.problem(e)
            if not why and not {(e["pid"], None), (e["pid"], e["tid"])} <= named:
                why = "its block or warpgroup has no name"
        if why:
            found.append(f"event {i}: {why}")
    summary = trace["otherData"]
    wanted = {"events", "dropped", "tensor share", *(f"{name} share" for name in WAITS)}
    if set(summary) != wanted:
        found.append(f"otherData has {sorted(set(summary) ^ wanted)} too much or too little")
        return found
    found += [
        f"{name} is {value}"
        for name, value in summary.items()
        if name.endswith("share") and not 0 <= value <= 1
    ]
    if summary["events"] != count:
        found.append(f"{count} events; otherData says {summary['events']}")
    if not is_whole(summary["dropped"]):
        found.append(f"dropped is {summary['dropped']}")
    elif summary["dropped"] == 0 and spans.left_open():
        found.append(f"{spans.left_open()} spans have no end, and no event was dropped")
    return found
