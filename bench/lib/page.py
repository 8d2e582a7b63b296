"""report.md and the plots, made of a record's data (lib/store.py)."""

import os
import sys
import traceback

from . import case as kinds
from . import machine, stats

HOW = """Of each number there are as many rounds as the last column says; hearth and llama-server take turns, and who
begins changes. *Times better*, above 1 hearth is ahead, is the middle of the rounds' own ratios: the machine's speed
moves between rounds, and the middle of one column may come from other minutes than that of the other (of counts, and
of quantiles over all rounds, it is the ratio of the two numbers). Behind it stands the interval of that ratio (five
rounds or more: bootstrap, 90 %; fewer: smallest and largest), and *spread* is half of it. *Exact* numbers are counts:
they do not depend on the machine. Everything else is time or the memory of a process, and depends on it; the ratios
do so less."""


def head(data):
    found = data["machine"]
    rows = [["machine", f"{found['cpu']}, {found['cores']} cores, {found['ram_gib']} GiB RAM"],
            ["system", f"{found['system']}, {found['kernel']}"], ["compiler", found["compiler"]],
            ["hearth", f"{found['hearth']}, commit {found['hearth_commit']}"],
            ["llama.cpp", f"{found['llama_cpp']}; llama-server {found['llama_server']}"],
            ["measured", f"{data['started']}, {data['seconds'] / 60:.0f} minutes"]]
    lines = ["# The record: hearth beside llama-server", "",
             "Made by `make bench`" + (" `ARGS=--quick`: a look, not the record." if data["quick"] else "."), "",
             "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows), "", HOW, ""]
    return lines


def _models(data):
    rows = [
        [name, f"{found['bytes'] / (1 << 20):.1f}", f"`{found['sha256']}`"] for name, found in data["models"].items()
    ]
    return ["## Models", "", stats.table(["file", "MiB", "SHA-256"], rows), ""]


def _flags(data):
    lines = ["## Flags", ""]
    for name, entry in data["cases"].items():
        lines += [f"- {name}, {kind}: `{flags}`" for kind, flags in entry["flags"].items()]
    return [*lines, ""]


def _made(data, entry):
    """Of a case whose cells were measured on other days, with other commits or on another machine than the head says."""
    groups = {}
    for cell in entry["cells"].values():
        groups.setdefault((cell.get("date"), cell.get("commit"), cell.get("machine")), []).append(cell["label"])
    head = data["machine"]["hearth_commit"]
    if all(not commit or (commit == head and data["started"].startswith(date) and not where)
           for date, commit, where in groups):
        return []
    said = {key: f"on {key[0]} with commit {key[1]}" + (f", on another machine: {key[2]}" if key[2] else "")
            for key in groups}
    if len(groups) == 1:
        return [f"Measured {text}." for text in said.values()] + [""]
    return ["Measured", ""] + [f"- {said[key]}: {'; '.join(labels)}" for key, labels in groups.items()] + [""]


def _case(folder, case, cells, drawn):
    """A page that cannot be written must not cost the measurements."""
    lines = []
    try:
        lines += [case.section(cells), ""]
        for file_name, drawing, caption in case.plots(cells):
            drawing.save(os.path.join(folder, file_name))
            drawn.add(file_name)
            lines += [f"![{caption}]({file_name})", "", caption, ""]
    except Exception as error:
        lines += [f"This part could not be written: {error!r}", ""]
        traceback.print_exc(limit=-3, file=sys.stderr)
    return lines


def write(folder, data, known):
    """`known`: the cases by name."""
    lines, drawn = head(data), set()
    for name, entry in data["cases"].items():
        case = known[name]
        cells = {key: result for key, result in entry["cells"].items() if result["rounds"]}
        lines += [f"## {case.title}", "", f"`{name}`. {case.about}".strip(), "", *_made(data, entry)]
        if cells:
            lines += _case(folder, case, cells, drawn)
        lines += [f"Failed: {result['label']}: {result['error']}" for result in entry["cells"].values()
                  if "error" in result]
    lines += _models(data) + _flags(data)
    with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines).replace("\n\n\n", "\n\n"))
    for name in os.listdir(folder):  # plots of cases that are no longer there
        if name.endswith(".svg") and name not in drawn:
            os.unlink(os.path.join(folder, name))


def summary(record):
    """What is said at the end of a run: a line for each compared figure of the cases that ran, and what failed."""
    lines = [f"{'':44} {'hearth':>10} {'llama-server':>13} {'times better':>13}  spread"]
    for path, found in record.data["figures"].items():
        if path.split(".")[0] in record.chosen and "ratio" in found:
            peer = stats.number(found["peer"], 2)
            lines.append(f"{path:44} {stats.number(found['hearth'], 2):>10} {peer:>13} "
                         f"{stats.number(found['ratio'], 2):>13}  {kinds.show_spread(found)}")
    lines += [f"failed: {error}" for error in record.errors()]
    lines.append(f"on {machine.short(record.data['machine'])}")
    return "\n".join(lines)
