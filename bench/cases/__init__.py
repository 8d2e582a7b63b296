"""The cases, in the order of the report. A module holds a group of them."""

import sys

from . import (
    beside,
    busy,
    crowd,
    disk,
    evict,
    hearth_only,
    hold,
    long_context,
    load,
    micro,
    parallel,
    recompute,
    remote,
    restart,
    sessions,
    sixteen,
    speculation,
    throughput,
    tool_turns,
    watched,
)

ALL = [
    case
    for module in (
        recompute,
        long_context,
        restart,
        tool_turns,
        watched,
        evict,
        sixteen,
        parallel,
        sessions,
        load,
        beside,
        throughput,
        busy,
        speculation,
        micro,
        hold,
        disk,
        remote,
        hearth_only,
        crowd,
    )
    for case in module.CASES
]


def select(names):
    """The cases of these names or groups; without names, those of the record."""
    if not names:
        return [case for case in ALL if case.in_record]
    out = []
    for name in names:
        wanted = name.replace("_", "-")
        found = [case for case in ALL if wanted in (case.name, case.group)]
        if not found:
            sys.exit(f"there is no case {name}: {' '.join(case.name for case in ALL)}")
        out += [case for case in found if case not in out]
    return out
