/* The texts that are made from the tables: --help, docs/options.md and docs/llama-server.md. */
#include "cli/options_internal.h"

#include <stdio.h>
#include <string.h>

/* "-m, --model FILE", or for a switch "--metrics, --no-metrics". */
static bool append_flags(struct hearth_buf *out, const struct hearth_option_row *row, const char *quote) {
    bool ok = true;
    size_t n;
    for (size_t at = 0; (n = hearth_option_next_name(row->names, &at)) > 0; at += n) {
        const bool off = row->names[at] == '!';
        ok = ok && hearth_buf_printf(out, "%s%.*s%s, ", quote, (int)(n - off), row->names + at + off, quote);
    }
    ok = ok &&
         hearth_buf_printf(out, "%s%s%s%s%s", quote, row->long_name, *row->argument ? " " : "", row->argument, quote);
    if (row->type == HEARTH_OPTION_IS_SWITCH) {
        ok = ok && hearth_buf_printf(out, ", %s--no-%s%s", quote, row->long_name + 2, quote);
    }
    return ok;
}

enum { HELP_INDENT = 38, HELP_COLUMNS = 112 };

/* Words, broken into lines that begin at HELP_INDENT; the first one begins where the cursor is. */
static bool append_wrapped(struct hearth_buf *out, const char *text) {
    bool ok = true;
    int column = HELP_INDENT;
    while (*text && ok) {
        const int n = (int)strcspn(text, " ");
        const bool breaks = column > HELP_INDENT && column + 1 + n > HELP_COLUMNS;
        const bool first = column == HELP_INDENT;
        ok = hearth_buf_printf(out, "%s%*s%.*s", breaks ? "\n" : "", breaks ? HELP_INDENT : !first, "", n, text);
        column = breaks ? HELP_INDENT + n : column + !first + n;
        text += n + (text[n] == ' ');
    }
    return ok;
}

static bool append_help(struct hearth_buf *out, const struct hearth_option_row *row) {
    const size_t start = out->len;
    char text[512];
    bool ok = hearth_buf_text(out, "  ") && append_flags(out, row, "");
    const size_t width = out->len - start;
    const bool fits = width < HELP_INDENT;
    const bool preset = *row->preset && row->type != HEARTH_OPTION_IS_ALWAYS;
    (void)snprintf(text, sizeof(text), "%s%s%s%s", row->help, preset ? " [" : "", preset ? row->preset : "",
                   preset ? "]" : "");
    ok = ok && hearth_buf_printf(out, "%s%*s", fits ? "" : "\n", fits ? HELP_INDENT - (int)width : HELP_INDENT, "");
    return ok && append_wrapped(out, text) && hearth_buf_text(out, "\n");
}

bool hearth_options_help(struct hearth_buf *out) {
    bool ok = hearth_buf_text(out, "hearth serve [options]: serves a model over the OpenAI API\n");
    for (size_t i = 0; i < hearth_option_row_count && ok; i++) {
        ok = hearth_option_rows[i].title ? hearth_buf_printf(out, "\n%s\n", hearth_option_rows[i].title)
                                         : append_help(out, &hearth_option_rows[i]);
    }
    return ok && hearth_buf_text(out, "\nOther\n"
                                      "  -h, --help                          This text\n"
                                      "  --version                           Versions of hearth and llama.cpp\n"
                                      "  --list-devices                      What --device can name on this machine\n"
                                      "\nEach option has a variable, HEARTH_CTX_SIZE for --ctx-size, and a line\n"
                                      "in the file of --config, ctx-size = 4096. A flag wins over a variable, and\n"
                                      "that over the file.\n");
}

/* A cell of a Markdown table must not hold a bare '|'. */
static bool append_escaped(struct hearth_buf *out, const char *text) {
    bool ok = true;
    for (; *text && ok; text++) {
        ok = *text == '|' ? hearth_buf_text(out, "\\|") : hearth_buf_printf(out, "%c", *text);
    }
    return ok;
}

bool hearth_options_markdown(struct hearth_buf *out) {
    bool ok = hearth_buf_text(
        out, "# Options of `hearth serve`\n\n"
             "This page is generated: `build/hearth options > docs/options.md`. A flag wins over its\n"
             "environment variable, which wins over the file of `--config`, which wins over the default. The file has\n"
             "lines such as `ctx-size = 32768` (the long name without its dashes; `#` begins a line of comment).\n"
             "Switches take `on` and `off` there and in the environment. Counts of tokens may end in `k` or `m`,\n"
             "sizes in `K`, `M` or `G`: powers of 1024. A misspelt name is answered with the nearest\n"
             "one: on the command line and in the file it is an error, in the environment (`HEARTH_CTXSIZE`) a\n"
             "warning. What llama-server's flags are here: [llama-server.md](llama-server.md). What is marked with\n"
             "↻ is applied while the server runs, when the file has changed and the process gets SIGHUP: see\n"
             "[load.md](load.md).\n");
    struct hearth_buf cell = {0};
    for (size_t i = 0; i < hearth_option_row_count && ok; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        if (row->title) {
            ok = hearth_buf_printf(out, "\n## %s\n\n| Flag | Environment | Default | Meaning |\n|---|---|---|---|\n",
                                   row->title);
            continue;
        }
        char name[64];
        hearth_option_env_name(row, name);
        cell.len = 0;
        ok = append_flags(&cell, row, "`") && hearth_buf_text(out, "| ") &&
             append_escaped(out, (const char *)cell.data) &&
             hearth_buf_printf(out, " | `%s` | %s | ", name, *row->preset ? row->preset : "-") &&
             append_escaped(out, row->help) && hearth_buf_text(out, row->live ? " ↻ |\n" : " |\n");
    }
    hearth_buf_finish(&cell);
    return ok;
}

/* ---- docs/llama-server.md ---- */

/* "`--ctx-size`", the option that honours a flag, or nothing where that is the flag itself. */
static bool append_honouring(struct hearth_buf *out, const struct hearth_flag *flag) {
    size_t at = 0, n;
    bool negated;
    const struct hearth_option_row *row = NULL;
    while (!row && (n = hearth_option_next_name(flag->names, &at)) > 0) {
        row = hearth_option_find(flag->names + at, n, &negated);
        at += n;
    }
    const bool other = row && !hearth_option_has_name(flag->names, row->long_name, strlen(row->long_name));
    return hearth_buf_text(out, "honoured") && (!other || hearth_buf_printf(out, " as `%s`", row->long_name)) &&
           (!*flag->text || (hearth_buf_text(out, ": ") && append_escaped(out, flag->text)));
}

static bool append_verdict(struct hearth_buf *out, const struct hearth_flag *flag) {
    switch (flag->verdict) {
    case HEARTH_FLAG_HONOURED: return append_honouring(out, flag);
    case HEARTH_FLAG_SAME: return hearth_buf_printf(out, "honoured: the same as `%s`", flag->text);
    case HEARTH_FLAG_ACCEPTED: return hearth_buf_text(out, "accepted: ") && append_escaped(out, flag->text);
    case HEARTH_FLAG_REFUSED: break;
    }
    return hearth_buf_text(out, "**refused**: ") && append_escaped(out, flag->text);
}

static bool append_llama_flag(struct hearth_buf *out, const struct hearth_flag *flag) {
    bool ok = hearth_buf_text(out, "| ");
    size_t n;
    for (size_t at = 0; (n = hearth_option_next_name(flag->names, &at)) > 0; at += n) {
        ok = ok && hearth_buf_printf(out, "%s`%.*s`", at > 0 ? ", " : "", (int)n, flag->names + at);
    }
    return ok && hearth_buf_text(out, flag->old ? " (earlier) | " : " | ") && append_verdict(out, flag) &&
           hearth_buf_text(out, " |\n");
}

bool hearth_options_llama_markdown(struct hearth_buf *out) {
    bool ok = hearth_buf_text(
        out, "# llama-server's flags\n\n"
             "This page is generated: `build/hearth options --llama-server > docs/llama-server.md`. A command line of\n"
             "llama-server is understood by `hearth serve`: each of its flags is *honoured*, *accepted* although it\n"
             "changes nothing here (the log says why, in one line), or *refused* with what to do instead, before the\n"
             "model is loaded. *Earlier* flags are those that llama-server no longer has. A flag that neither of them\n"
             "knows is answered with the nearest option.\n\n"
             "llama-server's variables (`LLAMA_ARG_CTX_SIZE`) are not read; where one is set a warning names hearth's\n"
             "own (`HEARTH_CTX_SIZE`). All of hearth's options are in [options.md](options.md).\n");
    for (size_t i = 0; i < hearth_flag_count && ok; i++) {
        const struct hearth_flag *flag = &hearth_flags[i];
        ok = flag->title ? hearth_buf_printf(out, "\n## %s\n\n| Flag | Here |\n|---|---|\n", flag->title)
                         : append_llama_flag(out, flag);
    }
    return ok;
}
