#!/usr/bin/env python3
"""The rules of the tree that a text search cannot check; scripts/lint.sh runs them.

    lint.py [--root DIR] [--baseline] BUILD

The rooms of src/, from the top down, and the prefixes of their names stand in scripts/lint.rooms. The call graph comes
from the object files of BUILD: a file uses another one when its object needs a symbol that the other one's defines.

    layer    a file includes, and uses names of, its own room and rooms below (or those in brackets in lint.rooms) only
    cycle    no file uses a file that uses it, directly or through others
    prefix   a name that crosses a file begins with hearth_ and a prefix of its room; no prefix has two rooms
    tag      no struct, union or enum tag is defined twice
    words    comments speak of requests, not of persons: who, whose, whom, nobody and somebody at most once in 100 lines
    path     a file of this tree that a page names is there, and so is a name that docs/architecture.md names

scripts/lint.baseline lists the findings that are accepted for now. A finding that it does not list fails, and so does a
line of it that is no longer found. A cycle that stays has its reason behind "#". --baseline writes the list anew, and
keeps the prefixes in scripts/lint.rooms up to date, where it is plain which room has them.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import textwrap

PERSONS = re.compile(r'\b(?:who|whose|whom|nobody|somebody)\b', re.I)
TAG = re.compile(r'^\s*(?:typedef\s+)?(struct|union|enum)\s+(?:class\s+)?(\w+)[^;()=]*\{', re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"(([a-z]+)/[^"]+)"', re.M)
SCAN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
PATH = re.compile(r'(?<![\w./~:-])(?:src|tests|scripts|docs|bench|examples|patches)(?:/[\w.*{},-]+)+/?')
NAME = re.compile(r'`(?:struct )?([a-z_]+\(\)|hearth_\w+|HEARTH_\w+)`')


class Room:
    def __init__(self, name, uses, prefixes):
        self.name, self.uses, self.prefixes = name, uses, prefixes


def read_rooms(text):
    """Lines "room (rooms it may use): prefix prefix …", continued on indented lines."""
    rooms = {}
    for line in re.sub(r'\n[ \t]+', ' ', re.sub(r'#.*', '', text)).splitlines():
        match = re.fullmatch(r'(\w+)(?:\s*\(([\w ]*)\))?:\s*(.*)', line.strip())
        if match:
            name, uses, prefixes = match.groups()
            rooms[name] = Room(name, None if uses is None else uses.split(), prefixes.split())
    order = list(rooms)
    for index, room in enumerate(rooms.values()):
        room.uses = {room.name, *(order[index:] if room.uses is None else room.uses)}
    return rooms


def room_of(path):
    parts = path.split('/')
    return parts[1] if len(parts) > 2 and parts[0] == 'src' else None


class Tree:
    """The sources of src/ as text."""

    def __init__(self, root):
        self.root = root
        self.files = {str(p.relative_to(root)): p.read_text(errors='replace') for p in sorted((root / 'src').rglob('*'))
                      if p.suffix in ('.c', '.h', '.cpp', '.hpp', '.def')}

    def code(self, path):
        """Without comments and literals; the lines stay where they are."""
        return SCAN.sub(lambda m: '\n' * m[0].count('\n') or ' ', self.files[path])

    def comments(self, path):
        return [m[0] for m in SCAN.finditer(self.files[path]) if m[0].startswith('/')]


class Graph:
    """The global names that each file of src/ defines, and those that it needs of other files."""

    def __init__(self, root, build):
        self.defines, self.uses = collections.defaultdict(set), collections.defaultdict(dict)
        objects = self.objects(root, build)
        needs, owner = collections.defaultdict(set), {}
        for path, kind, name in self.symbols(objects):
            if kind == 'U':
                needs[path].add(name)
            elif kind in 'TDBRC':
                self.defines[path].add(name)
                owner[name] = path
        for path, names in needs.items():
            for name in names:
                if owner.get(name, path) != path:
                    self.uses[path].setdefault(owner[name], set()).add(name)

    @staticmethod
    def objects(root, build):
        found = {}
        for entry in json.loads((build / 'compile_commands.json').read_text()):
            source = (pathlib.Path(entry['directory']) / entry['file']).resolve()
            if not source.is_relative_to(root / 'src') or entry['output'].startswith('tests/'):
                continue
            if not entry['output'].endswith('.o'):  # a precompiled header
                continue
            built = build / entry['output']
            if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
                sys.exit(f'{source.relative_to(root)} is newer than its object file in {build}: build first')
            found.setdefault(str(built), str(source.relative_to(root)))
        if not found:
            sys.exit(f'no object files of src/ in {build}: build first')
        return {built: source for source, built in {source: built for built, source in found.items()}.items()}

    @staticmethod
    def symbols(objects):
        path = None
        listing = subprocess.run(['nm', '-P', '-g', *objects], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            words = line.split()
            if len(words) == 1 and line.endswith(':'):
                path = objects[line[:-1]]
            elif len(words) >= 2:
                yield path or next(iter(objects.values())), words[1], words[0]

    def cycles(self):
        """The strongly connected components of more than one file (Tarjan's algorithm)."""
        index, low, stack, found = {}, {}, [], []

        def visit(path):
            index[path] = low[path] = len(index)
            stack.append(path)
            for other in sorted(self.uses.get(path, ())):
                if other not in index:
                    visit(other)
                    low[path] = min(low[path], low[other])
                elif other in stack:
                    low[path] = min(low[path], index[other])
            if low[path] == index[path]:
                component = stack[stack.index(path):]
                del stack[-len(component):]
                if len(component) > 1:
                    found.append(sorted(component))

        for path in sorted(self.uses):
            if path not in index:
                visit(path)
        return found

    def arrows(self, files):
        for path in files:
            for other, names in sorted(self.uses.get(path, {}).items()):
                if other in files:
                    names = demangle(sorted(names))
                    more = f' and {len(names) - 4} more' if len(names) > 4 else ''
                    yield f'{path} -> {other}: {", ".join(names[:4])}{more}'


def demangle(names):
    return [re.sub(r'\(.*', '', name) for name in
            subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True).stdout.split('\n')]


# ---- the rules; each yields (finding, lines that explain it)

def check_layers(tree, graph, rooms):
    for path, text in tree.files.items():
        room = room_of(path)
        if room not in rooms:
            yield f'layer {path}: no room "{room}" in scripts/lint.rooms', []
            continue
        for header, other in INCLUDE.findall(text):
            if other not in rooms[room].uses:
                yield f'layer {path} includes {header}', []
    for path, uses in sorted(graph.uses.items()):
        for other, names in sorted(uses.items()):
            if room_of(path) in rooms and room_of(other) not in rooms[room_of(path)].uses:
                yield f'layer {path} uses {other}', demangle(sorted(names))


def check_cycles(tree, graph, rooms):
    for files in graph.cycles():
        yield 'cycle ' + ' '.join(files), list(graph.arrows(files))


def longest_prefix(name, prefixes):
    words = name.split('_')
    return next((p for n in range(len(words), 0, -1) if (p := '_'.join(words[:n])) in prefixes), None)


def check_prefixes(tree, graph, rooms):
    owner, used = {}, set()
    for room in rooms.values():
        for prefix in room.prefixes:
            if prefix in owner:
                yield f'prefix hearth_{prefix}_ has two rooms: {owner[prefix]} and {room.name}', []
            owner[prefix] = room.name
    names = [(path, name) for path, defined in graph.defines.items() for name in defined if not name.startswith('_')]
    names += [(path, m[2]) for path in tree.files for m in TAG.finditer(tree.code(path)) if m[2].startswith('hearth_')]
    wrong = collections.defaultdict(list)
    for path, name in sorted(set(names)):
        if name == 'main' or (path.endswith('.cpp') and not name.startswith('hearth_')):
            continue
        prefix = longest_prefix(name.removeprefix('hearth_'), owner) if name.startswith('hearth_') else None
        used.add(prefix)
        if not name.startswith('hearth_'):
            yield f'prefix {path}: {name} crosses its file without "hearth_"', []
        elif not prefix:
            wrong[f'prefix src/{room_of(path)}: hearth_{name.split("_")[1]}_ is in no room of scripts/lint.rooms'].append(name)
        elif owner[prefix] != room_of(path):
            wrong[f'prefix src/{room_of(path)}: hearth_{prefix}_ belongs to {owner[prefix]}'].append(name)
    yield from wrong.items()
    for prefix in sorted(set(owner) - used):
        yield f'prefix hearth_{prefix}_ stands in scripts/lint.rooms and no name has it', []


def check_tags(tree, graph, rooms):
    places = collections.defaultdict(list)
    for path in tree.files:
        for match in TAG.finditer(tree.code(path)):
            places[match[2]].append(path)
    for tag, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f'tag {tag} is defined in {" and ".join(paths)}', []


def check_words(tree, graph, rooms):
    lines, found = collections.Counter(), collections.Counter()
    for path, text in tree.files.items():
        lines[room_of(path)] += text.count('\n')
        found[room_of(path)] += sum(len(PERSONS.findall(comment)) for comment in tree.comments(path))
    for room in sorted(rooms):
        if found[room] * 100 > lines[room]:
            yield f'words src/{room}: more persons than one in 100 lines', [f'{found[room]} in {lines[room]} lines']


def check_paths(tree, graph, rooms):
    for page in sorted([*tree.root.glob('*.md'), *tree.root.glob('docs/*.md')]):
        if page.name == 'CHANGELOG.md':
            continue
        # What scripts/build.sh is told to build is a target.
        text = re.sub(r'scripts/build\.sh [^\n`]*', '', page.read_text())
        for name in sorted(set(PATH.findall(text))):
            for one in expand(name.rstrip('.,')):
                if not any(tree.root.glob(one.rstrip('/'))):
                    yield f'path {page.relative_to(tree.root)} names {one}, which is not there', []
        if page.name == 'architecture.md':
            for name in sorted({name.rstrip('()') for name in NAME.findall(text)}):
                if not any(re.search(rf'\b{name}\b', code) for code in tree.files.values()):
                    yield f'path {page.relative_to(tree.root)} names {name}, which is not in src/', []


def expand(name):
    """a/{b,c}.d as a shell reads it."""
    match = re.search(r'\{([^{}]*)\}', name)
    if not match:
        return [name]
    return [one for part in match[1].split(',') for one in expand(name[:match.start()] + part + name[match.end():])]


def find(tree, graph, rooms):
    findings = {}
    for check in (check_layers, check_cycles, check_prefixes, check_tags, check_words, check_paths):
        findings.update(check(tree, graph, rooms))
    return findings


# ---- the baseline

def read_baseline(text):
    """Each finding that is listed, with its reason or None."""
    listed = {}
    for line in text.splitlines():
        finding, _, reason = line.partition('#')
        if finding.strip():
            listed[finding.strip()] = reason.strip() or None
    return listed


HEAD = """# Findings of scripts/lint.py that are accepted for now. Written by: scripts/lint.sh --baseline BUILD
# A cycle has its reason behind "#".
"""


def write_baseline(findings, listed):
    lines = []
    for finding in sorted(findings):
        reason = listed.get(finding)
        if not reason and finding.startswith('cycle '):
            # What is left of a listed cycle keeps its reason, also when a file of it has another name now.
            files = set(finding.split()[1:])
            reason = next((why for old, why in listed.items()
                           if old.startswith('cycle ') and 2 * len(files & set(old.split()[1:])) >= len(files)), None)
        lines.append(finding + (f'  # {reason}' if reason else ''))
    return HEAD + ''.join(line + '\n' for line in lines)


def write_rooms(text, findings):
    """The table with the prefixes that names have, in the room that has them, and without those that none has."""
    for finding in findings:
        new = re.fullmatch(r'prefix src/(\w+): hearth_(\w+)_ is in no room of scripts/lint.rooms', finding)
        gone = re.fullmatch(r'prefix hearth_(\w+)_ stands in scripts/lint.rooms and no name has it', finding)
        if new:
            text = re.sub(rf'^{new[1]}( \(.*\))?:', rf'\g<0> {new[2]}', text, flags=re.M)
        elif gone:
            text = re.sub(rf'^(?!#)(.*) {gone[1]}(?= |$)', r'\1', text, flags=re.M)
    rooms = re.sub(r'\n +', ' ', text[text.index('\n\n') + 2:]).splitlines()
    lines = [head + ': ' + ' '.join(sorted(set(names.split()))) for head, names in (room.split(':') for room in rooms if room)]
    return text[:text.index('\n\n') + 2] + ''.join(
        textwrap.fill(line, 118, subsequent_indent='    ', break_on_hyphens=False, break_long_words=False) + '\n' for line in lines)


def complaints(findings, listed):
    for finding, details in findings.items():
        if finding not in listed:
            yield '\n    '.join([finding, *details])
        elif finding.startswith('cycle ') and not listed[finding]:
            yield f'{finding}\n    stands in scripts/lint.baseline without a reason: add "# why it stays"'
    for finding in listed:
        if finding not in findings:
            yield f'{finding}\n    is no longer so: remove it from scripts/lint.baseline (or: scripts/lint.sh --baseline BUILD)'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    parser.add_argument('--baseline', action='store_true')
    parser.add_argument('build', type=pathlib.Path)
    args = parser.parse_args()

    root = args.root.resolve()
    table = root / 'scripts/lint.rooms'
    tree, graph = Tree(root), Graph(root, args.build.resolve())
    baseline = root / 'scripts/lint.baseline'
    listed = read_baseline(baseline.read_text()) if baseline.exists() else {}
    findings = find(tree, graph, read_rooms(table.read_text()))
    if args.baseline:
        table.write_text(write_rooms(table.read_text(), findings))
        baseline.write_text(write_baseline(find(tree, graph, read_rooms(table.read_text())), listed))
        return 0
    failed = list(complaints(findings, listed))
    print('\n'.join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
