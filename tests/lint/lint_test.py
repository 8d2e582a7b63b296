#!/usr/bin/env python3
"""Small trees that break one rule of scripts/lint.py each: the rule has to say so, and to be silent once it is kept."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

LINT = pathlib.Path(__file__).parents[2] / 'scripts' / 'lint.py'
ROOMS = '# rooms\n\ntop: top\nweb (base): web\nmiddle: middle\n    more\nbase: base\n'
# A tree that keeps every rule.
CLEAN = {
    'src/top/a.c': 'int hearth_base_x(void);\nint hearth_top_a(void);\nint hearth_top_a(void) { return hearth_base_x(); }\n',
    'src/web/w.c': 'int hearth_web_w;\n',
    'src/middle/m.c': 'int hearth_middle_m;\nint hearth_more;\n',
    'src/base/b.c': 'int hearth_base_x(void);\nint hearth_base_x(void) { return 0; }\n',
}

OBJECTS = {}  # of files that include nothing: most of them are in every tree


class Lint(unittest.TestCase):
    def setUp(self):
        self.held = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.held.name).resolve()
        self.addCleanup(self.held.cleanup)

    def write(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def lint(self, files=None, *options):
        self.write({'scripts/lint.rooms': ROOMS, **CLEAN, **(files or {})})
        build = self.root / 'build'
        build.mkdir(exist_ok=True)
        entries = []
        for source in sorted((self.root / 'src').rglob('*.c')):
            output = str(source.relative_to(self.root)).replace('/', '_') + '.o'
            text = source.read_text()
            if text not in OBJECTS:
                subprocess.run([*os.environ.get('CC', 'cc').split(), '-I', self.root / 'src', '-c', source, '-o',
                                build / output], check=True)
                if '#' not in text:
                    OBJECTS[text] = (build / output).read_bytes()
            else:
                (build / output).write_bytes(OBJECTS[text])
            entries.append({'directory': str(build), 'file': os.path.relpath(source, build), 'output': output})
        (build / 'compile_commands.json').write_text(json.dumps(entries))
        return self.run_lint(*options)

    def run_lint(self, *options):
        done = subprocess.run([sys.executable, LINT, '--root', self.root, *options, self.root / 'build'],
                              capture_output=True, text=True)
        self.assertNotIn('Traceback', done.stderr)
        return done.returncode, done.stderr.strip()

    def refuses(self, files, *texts):
        code, said = self.lint(files)
        self.assertEqual(code, 1, said)
        for text in texts:
            self.assertIn(text, said)

    def test_a_clean_tree_passes(self):
        self.assertEqual(self.lint(), (0, ''))

    def test_two_files_that_call_each_other(self):
        self.refuses({'src/top/a.c': 'int hearth_top_a(void);\nint hearth_top_b(void);\nint hearth_top_a(void) { return hearth_top_b(); }\n',
                      'src/top/b.c': 'int hearth_top_a(void);\nint hearth_top_b(void);\nint hearth_top_b(void) { return hearth_top_a(); }\n'},
                     'cycle src/top/a.c src/top/b.c', 'src/top/a.c -> src/top/b.c: hearth_top_b')

    def test_a_circle_of_three_over_a_function_pointer_and_a_variable(self):
        self.refuses({'src/top/a.c': 'int hearth_top_b(void);\nint (*hearth_top_a)(void) = hearth_top_b;\n',
                      'src/top/b.c': 'extern int hearth_top_c;\nint hearth_top_b(void);\nint hearth_top_b(void) { return hearth_top_c; }\n',
                      'src/top/c.c': 'extern int (*hearth_top_a)(void);\nint hearth_top_c;\nint hearth_top_d(void);\nint hearth_top_d(void) { return hearth_top_a(); }\n'},
                     'cycle src/top/a.c src/top/b.c src/top/c.c')

    def test_a_circle_across_rooms(self):
        self.refuses({'src/base/b.c': 'int hearth_base_x(void);\nint hearth_top_a(void);\nint hearth_base_x(void) { return hearth_top_a(); }\n'},
                     'cycle src/base/b.c src/top/a.c', 'layer src/base/b.c uses src/top/a.c')

    def test_a_chain_is_no_circle(self):
        self.assertEqual(self.lint({
            'src/top/b.c': 'int hearth_top_a(void);\nint hearth_top_b(void);\nint hearth_top_b(void) { return hearth_top_a(); }\n',
            'src/top/c.c': 'int hearth_top_b(void);\nint hearth_top_c(void);\nint hearth_top_c(void) { return hearth_top_b(); }\n'}), (0, ''))

    def test_an_include_from_above(self):
        self.refuses({'src/top/a.h': '', 'src/base/b.c': '#include "top/a.h"\nint hearth_base_x(void) { return 0; }\n'},
                     'layer src/base/b.c includes top/a.h')

    def test_a_room_uses_only_what_its_brackets_name(self):
        self.refuses({'src/middle/m.h': '', 'src/web/w.c': '#include "middle/m.h"\nint hearth_web_w;\n'},
                     'layer src/web/w.c includes middle/m.h')

    def test_a_room_that_the_table_lacks(self):
        self.refuses({'src/attic/a.c': 'int hearth_attic_a;\n'}, 'layer src/attic/a.c: no room "attic"')

    def test_prefixes(self):
        self.refuses({'src/base/b.c': 'int hearth_base_x(void) { return 0; }\nint hearth_top_b, hearth_other, plain;\n'},
                     'prefix src/base: hearth_top_ belongs to top', 'prefix src/base: hearth_other_ is in no room',
                     'prefix src/base/b.c: plain crosses its file without "hearth_"')

    def test_the_prefix_of_a_tag(self):
        self.refuses({'src/base/b.h': 'struct hearth_top_thing { int a; };\n'}, 'prefix src/base: hearth_top_ belongs to top')

    def test_static_names_are_free(self):
        self.assertEqual(self.lint({'src/web/w.c': 'int hearth_web_w;\nstatic int plain(void) { return 1; }\n'
                                                   'int hearth_web(void) { return plain(); }\n'}), (0, ''))

    def test_a_prefix_with_two_rooms_and_one_without_a_name(self):
        self.refuses({'scripts/lint.rooms': ROOMS + 'last: base unused\n'},
                     'prefix hearth_base_ has two rooms: base and last', 'prefix hearth_unused_ stands in scripts/lint.rooms')

    def test_a_longer_prefix_goes_first(self):
        self.assertEqual(self.lint({'scripts/lint.rooms': ROOMS.replace('web (base): web', 'web (base): web base_web'),
                                    'src/web/w.c': 'int hearth_web_w, hearth_base_web_w;\n'}), (0, ''))

    def test_a_tag_that_is_defined_twice(self):
        self.refuses({'src/top/a.h': 'struct pair {\n    int a;\n};\n', 'src/middle/m.h': 'enum pair {\n    ONE,\n};\n'},
                     'tag pair is defined in src/middle/m.h and src/top/a.h')

    def test_a_tag_that_is_declared_or_told_of_is_not_defined(self):
        self.assertEqual(self.lint({'src/top/a.h': 'struct pair {\n    int a;\n};\n',
                                    'src/middle/m.h': 'struct pair;\nstruct pair *hearth_middle_pair(struct pair *p);\n'
                                                      '/* struct pair { int a; } */\n'}), (0, ''))

    def test_persons_in_comments(self):
        self.refuses({'src/base/b.h': '/* the request who waits */\n' + '\n' * 80},
                     'words src/base: more persons than one in 100 lines')
        self.assertEqual(self.lint({'src/base/b.h': '/* the request who waits */\n' + '\n' * 100}), (0, ''))
        self.assertEqual(self.lint({'src/base/b.h': 'static const char *const who = "who /* whose */";\n'}), (0, ''))

    def test_a_page_names_a_file_that_is_not_there(self):
        self.refuses({'docs/page.md': 'See src/top/a.c, `src/{top,web}/*.c`, and src/top/gone.c.\n'},
                     'path docs/page.md names src/top/gone.c')
        self.assertEqual(self.lint({'docs/page.md': 'See src/top/a.c, `src/{top,web}/*.c`, [w](../src/web/w.c).\n'}), (0, ''))

    def test_architecture_names_a_function_that_is_not_there(self):
        self.refuses({'docs/architecture.md': 'See `gone()`, `hearth_base_x()`, `struct hearth_lost`, `HEARTH_TABLE`.\n'},
                     'names gone, which', 'names hearth_lost, which', 'names HEARTH_TABLE, which')
        self.assertEqual(self.lint({'docs/architecture.md': 'See `hearth_base_x()`.\n'}), (0, ''))

    def test_the_baseline_accepts_and_is_refused_when_it_is_stale(self):
        tags = {'src/top/a.h': 'struct pair {\n};\n', 'src/middle/m.h': 'struct pair {\n};\n'}
        self.assertEqual(self.lint(tags, '--baseline')[0], 0)
        self.assertEqual(self.run_lint(), (0, ''))
        code, said = self.lint({'src/middle/m.h': ''})
        self.assertEqual(code, 1)
        self.assertIn('is no longer so: remove it', said)

    def test_the_baseline_gives_prefixes_to_rooms(self):
        self.lint({'scripts/lint.rooms': ROOMS + 'last: gone\n', 'src/web/w.c': 'int hearth_spider_w;\n'}, '--baseline')
        self.assertEqual((self.root / 'scripts/lint.rooms').read_text(),
                         '# rooms\n\ntop: top\nweb (base): spider\nmiddle: middle more\nbase: base\nlast: \n'.replace(': \n', ':\n'))
        self.assertEqual(self.run_lint(), (0, ''))

    def test_a_cycle_needs_a_reason_and_what_is_left_of_it_keeps_it(self):
        def calls(one, *others):
            return ''.join(f'int hearth_top_{o}(void);\n' for o in (one, *others)) + \
                f'int hearth_top_{one}(void) {{ return {"+".join(f"hearth_top_{o}()" for o in others) or 0}; }}\n'
        circle = {'src/top/a.c': calls('a', 'b'), 'src/top/b.c': calls('b', 'a', 'c'), 'src/top/c.c': calls('c', 'a')}
        self.lint(circle, '--baseline')
        code, said = self.run_lint()
        self.assertEqual(code, 1)
        self.assertIn('without a reason', said)
        baseline = self.root / 'scripts/lint.baseline'
        baseline.write_text(baseline.read_text().replace('c.c\n', 'c.c  # a schema inside a schema\n'))
        self.assertEqual(self.run_lint(), (0, ''))
        self.assertEqual(self.lint({**circle, 'src/top/c.c': calls('c')})[0], 1)
        self.run_lint('--baseline')
        self.assertEqual(self.run_lint(), (0, ''))
        self.assertIn('cycle src/top/a.c src/top/b.c  # a schema inside a schema\n', baseline.read_text())

    def test_an_object_that_is_older_than_its_source(self):
        self.lint()
        source = self.root / 'src/top/a.c'
        os.utime(source, (source.stat().st_atime, source.stat().st_mtime + 100))
        code, said = self.run_lint()
        self.assertEqual(code, 1)
        self.assertIn('build first', said)


if __name__ == '__main__':
    unittest.main()
