"""The rules of a Chrome-JSON trace, out of the Trace Event Format and what the viewers do with it.

`broken_rules(text)` names every rule a trace breaks. Perfetto's own trace processor forgives much
without a word: a negative dur, a tid that is no whole number, an unknown phase, an array cut short.
"""

import json
from collections import defaultdict
from decimal import Decimal

RULES = {
    "json": "strict JSON: complete, no key twice, no NaN",
    "object": "an object with a list traceEvents and displayTimeUnit ms or ns",
    "slices": "at least one slice, and the first event at 0",
    "phase": "X, C or M",
    "name": "a text that is not empty",
    "category": "a text on every slice",
    "args": "an object",
    "ids": "pid and tid are whole numbers in uint32; tid 0 would be taken for the main thread",
    "time": "ts is a number from 0, whole in nanoseconds",
    "duration": "dur is a number from 0, whole in nanoseconds",
    "nesting": "two slices of a track are apart, or one holds the other",
    "metadata": "args.name is a text; args.sort_index a whole number",
    "tracks": "every track with slices is named once, and no two of them alike",
    "counter": "at least one series; every value a number",
    "counters apart": "a name of a counter belongs to one track: viewers merge by name",
}
UINT32 = 2**32


def broken_rules(text: bytes) -> set[str]:
    """The rules that a trace breaks; after "json" or "object" nothing more can be said."""
    try:
        trace = json.loads(
            text.decode("utf-8"),
            parse_float=Decimal,
            parse_constant=_refuse,
            object_pairs_hook=_no_key_twice,
        )
    except ValueError:
        return {"json"}
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list) or trace.get("displayTimeUnit") not in ("ms", "ns"):
        return {"object"}
    if not all(isinstance(event, dict) for event in events):
        return {"object"}
    found = set().union(*map(_broken_by, events))
    return found if found else _broken_together(events)


def nanoseconds(microseconds) -> int:
    """The exact whole number. Raises ValueError where it is none."""
    if type(microseconds) not in (int, Decimal) or microseconds * 1000 % 1:
        raise ValueError(microseconds)
    return int(microseconds * 1000)


def _refuse(constant):
    raise ValueError(constant)


def _no_key_twice(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def _broken_by(event):
    """What one event breaks by itself."""
    phase, args = event.get("ph"), event.get("args")
    found = {
        "phase": phase not in ("X", "C", "M"),
        "name": not (isinstance(event.get("name"), str) and event["name"]),
        "args": not isinstance(args, dict),
        "ids": not (_is_id(event.get("pid"), 0) and _is_id(event.get("tid", 1), 1)),
    }
    found["ids"] |= "tid" not in event and event.get("name") != "process_name"
    args = args if isinstance(args, dict) else {}
    if phase in ("X", "C"):
        found["time"] = not _is_time(event.get("ts"))
    if phase == "X":
        found["duration"] = not _is_time(event.get("dur"))
        found["category"] = not (isinstance(event.get("cat"), str) and event["cat"])
    if phase == "C":
        found["counter"] = not (args and all(type(v) in (int, Decimal) for v in args.values()))
    if phase == "M":
        key, kind = ("sort_index", int) if "sort_index" in event["name"] else ("name", str)
        found["metadata"] = type(args.get(key)) is not kind or args[key] == ""
    return {rule for rule, broken in found.items() if broken}


def _broken_together(events):
    """What events that are sound by themselves break among one another."""
    slices, names, counters = defaultdict(list), [], defaultdict(set)
    for event in events:
        track = event["pid"], event.get("tid")
        if event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            slices[track].append((begin, begin + nanoseconds(event["dur"])))
        elif event["ph"] == "C":
            counters[event["pid"], event["name"]].add(track)
        elif event["name"] == "thread_name":
            names.append((track, event["args"]["name"]))
    times = [nanoseconds(event["ts"]) for event in events if "ts" in event]
    named = [track for track, _ in names]
    found = {
        "slices": not slices or min(times) != 0,
        "nesting": not all(map(_is_nested, slices.values())),
        "tracks": sorted(named) != sorted(slices) or len({n for _, n in names}) != len(names),
        "counters apart": any(len(tracks) > 1 for tracks in counters.values()),
    }
    return {rule for rule, broken in found.items() if broken}


def _is_nested(slices):
    """Whether no slice crosses the end of another one."""
    ends = []
    for begin, end in sorted(slices, key=lambda one: (one[0], -one[1])):
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and ends[-1] < end:
            return False
        ends.append(end)
    return True


def _is_id(value, low):
    return type(value) is int and low <= value < UINT32


def _is_time(value):
    try:
        return nanoseconds(value) >= 0
    except ValueError:
        return False
