/* Design. The table becomes an array of rows that know where in the struct their value lives; everything else walks
 * that array. A value comes as text from one of four places and goes through one function, hearth's own defaults
 * included: a default that its row would not accept is caught by the first test that parses anything.
 *
 * The file of --config is found first, as a flag or a variable may name it, and is then read between the defaults and
 * the environment.
 *
 * Invariants. A struct that was parsed without an error holds, for each row, a value within the row's limits. */
#include "cli/options.h"

#include "base/assert.h"
#include "cli/infile.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { TEXT, LIST, CHOICE, WHOLE, SIZE, REAL, SWITCH, ALWAYS };

struct row {
    const char *title; /* a section; everything else is empty then */
    enum type type;
    const char *long_name, *names, *argument, *preset, *help;
    double least, most;
    size_t offset;
    bool live;
};

static const struct row rows[] = {
#define SECTION(text) {.title = (text)},
#define ROW(field, kind, long_text, other, metavar, value, low, high, text, changes) \
    {.type = (kind),                                                                 \
     .long_name = (long_text),                                                       \
     .names = (other),                                                               \
     .argument = (metavar),                                                          \
     .preset = (value),                                                              \
     .help = (text),                                                                 \
     .least = (low),                                                                 \
     .most = (high),                                                                 \
     .offset = offsetof(struct hearth_options, field),                               \
     .live = (changes)},
#define OPTION(...) ROW(__VA_ARGS__, false)
#define LIVE(...) ROW(__VA_ARGS__, true)
#include "cli/options.def"
#undef SECTION
#undef OPTION
#undef ROW
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* ---------------------------------------------------------------------------------------------------- names */

/* True when `names`, separated by blanks, has `name`. */
static bool has_name(const char *names, const char *name, size_t len) {
    while (*names) {
        const size_t n = strcspn(names, " ");
        if (n == len && memcmp(names, name, len) == 0) {
            return true;
        }
        names += n + (names[n] == ' ');
    }
    return false;
}

/* The row that a flag names; `*negated` is set for --no-name of a switch. */
static const struct row *find_row(const char *flag, size_t len, bool *negated) {
    static const char no[] = "--no-";
    *negated = false;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        if (row->title) {
            continue;
        }
        if ((strlen(row->long_name) == len && memcmp(row->long_name, flag, len) == 0) ||
            has_name(row->names, flag, len)) {
            return row;
        }
        if (row->type == SWITCH && len == strlen(row->long_name) + 3 && strncmp(flag, no, sizeof(no) - 1) == 0 &&
            memcmp(flag + sizeof(no) - 1, row->long_name + 2, len - sizeof(no) + 1) == 0) {
            *negated = true;
            return row;
        }
    }
    return NULL;
}

/* HEARTH_CTX_SIZE for --ctx-size. */
static void env_name(const struct row *row, char out[64]) {
    const int n = snprintf(out, 64, "HEARTH_%s", row->long_name + 2);
    HEARTH_ASSERT(n > 0 && n < 64);
    for (char *p = out; *p; p++) {
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    }
}

static size_t least_of_3(size_t a, size_t b, size_t c) {
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Edits (insert, delete, replace a byte) between two words of at most 63 bytes. */
static size_t edits(const char *a, const char *b) {
    const size_t na = strlen(a), nb = strlen(b);
    size_t line[64];
    if (na > 63 || nb > 63) {
        return 64;
    }
    for (size_t j = 0; j <= nb; j++) {
        line[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = line[0];
        line[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const size_t above = line[j];
            line[j] = least_of_3(above + 1, line[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return line[nb];
}

const char *hearth_nearest(const char *word, const char *const *list, size_t n) {
    const char *best = NULL;
    size_t best_edits = strlen(word) / 3 + 2; /* farther away than this is no misspelling */
    for (size_t i = 0; i < n; i++) {
        const size_t d = edits(word, list[i]);
        if (d < best_edits) {
            best_edits = d;
            best = list[i];
        }
    }
    return best;
}

/* The long name that a misspelt one is nearest to, or NULL. */
static const char *nearest_name(const char *word) {
    const char *names[ROWS];
    size_t n = 0;
    for (size_t i = 0; i < ROWS; i++) {
        if (!rows[i].title) {
            names[n++] = rows[i].long_name;
        }
    }
    return hearth_nearest(word, names, n);
}

static int unknown_flag(const char *flag, size_t len, struct hearth_errmsg *msg) {
    char word[64];
    (void)snprintf(word, sizeof(word), "%.*s", (int)(len < 63 ? len : 63), flag);
    const bool no = strncmp(word, "--no-", 5) == 0;
    if (no) {
        memmove(word + 2, word + 5, strlen(word + 5) + 1);
    }
    const char *near = nearest_name(word);
    if (!near) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "unknown option %.*s (see hearth serve --help)", (int)len, flag);
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "unknown option %.*s, did you mean %s? (see hearth serve --help)",
                       (int)len, flag, near);
}

/* ---------------------------------------------------------------------------------------------------- values */

static void *value_of(const struct row *row, struct hearth_options *options) {
    return (char *)options + row->offset;
}

static int set_number(const struct row *row, const char *origin, const char *text, void *value,
                      struct hearth_errmsg *msg) {
    char *end = NULL;
    errno = 0;
    if (row->type == WHOLE) {
        const bool word = row->least < 0 && (strcmp(text, "auto") == 0 || strcmp(text, "all") == 0);
        const long long n = word ? -1 : strtoll(text, &end, 10);
        const bool good = word || (end != text && *end == '\0' && errno == 0);
        if (!good || (double)n < row->least || (double)n > row->most) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a whole number from %.0f to %.0f", origin,
                               text, row->least, row->most);
        }
        *(int64_t *)value = n;
        return HEARTH_OK;
    }
    const double x = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(x) || x < row->least || x > row->most) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a number from %g to %g", origin, text, row->least,
                           row->most);
    }
    *(double *)value = x;
    return HEARTH_OK;
}

/* "64M". The power of 1024 is told by one letter. */
static int set_size(const struct row *row, const char *origin, const char *text, int64_t *value,
                    struct hearth_errmsg *msg) {
    static const char letters[] = "KMGT";
    char *end = NULL;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    const double scale = letter ? pow(1024, (double)(letter - letters + 1)) : 1;
    const bool good = end != text && errno == 0 && (letter ? end[1] == '\0' : *end == '\0');
    if (!good || (double)n * scale < row->least || (double)n * scale > row->most) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a size such as 64M or 2G", origin, text);
    }
    *value = n * (int64_t)scale;
    return HEARTH_OK;
}

static int add_to_list(const char *origin, const char *text, enum hearth_option_source source,
                       struct hearth_option_list *list, struct hearth_errmsg *msg) {
    if (!*text) {
        return HEARTH_OK;
    }
    list->n = list->source == source ? list->n : 0; /* what wins takes the place of what was there */
    list->source = source;
    if (list->n == HEARTH_OPTION_LIST_MAX) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s may be given %d times at most", origin, HEARTH_OPTION_LIST_MAX);
    }
    list->v[list->n++] = text;
    return HEARTH_OK;
}

static int set_switch(const char *origin, const char *text, bool *value, struct hearth_errmsg *msg) {
    static const char *const on[] = {"on", "1", "true", "yes"};
    static const char *const off[] = {"off", "0", "false", "no"};
    for (size_t i = 0; i < 4; i++) {
        if (strcmp(text, on[i]) == 0 || strcmp(text, off[i]) == 0) {
            *value = strcmp(text, on[i]) == 0;
            return HEARTH_OK;
        }
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is neither on nor off", origin, text);
}

static int set_choice(const struct row *row, const char *origin, const char *text, const char **value,
                      struct hearth_errmsg *msg) {
    const size_t len = strlen(text);
    for (const char *word = row->argument; *word;) {
        const size_t n = strcspn(word, "|");
        if (n == len && memcmp(word, text, n) == 0) {
            *value = text;
            return HEARTH_OK;
        }
        word += n + (word[n] == '|');
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is none of %s", origin, text, row->argument);
}

/* `origin` is how an error names the place that the text came from. */
static int set(const struct row *row, const char *origin, const char *text, enum hearth_option_source source,
               struct hearth_options *options, struct hearth_errmsg *msg) {
    void *value = value_of(row, options);
    switch (row->type) {
    case TEXT:
        *(const char **)value = *text ? text : NULL;
        return HEARTH_OK;
    case LIST:
        return add_to_list(origin, text, source, value, msg);
    case CHOICE:
        return set_choice(row, origin, text, value, msg);
    case SIZE:
        return set_size(row, origin, text, value, msg);
    case WHOLE:
    case REAL:
        return set_number(row, origin, text, value, msg);
    case SWITCH:
        return set_switch(origin, text, value, msg);
    case ALWAYS:
        *(bool *)value = true;
        return HEARTH_OK;
    }
    return HEARTH_ERR_INVALID;
}

/* One flag at argv[*at]; steps over its value. */
static int parse_flag(struct hearth_options *options, int argc, char *const argv[], int *at,
                      struct hearth_errmsg *msg) {
    const char *flag = argv[*at];
    const char *equals = strchr(flag, '=');
    const size_t len = equals ? (size_t)(equals - flag) : strlen(flag);
    bool negated;
    const struct row *row = find_row(flag, len, &negated);
    if (!row) {
        return unknown_flag(flag, len, msg);
    }
    const char *value = equals ? equals + 1 : NULL;
    if (row->type == SWITCH || row->type == ALWAYS) {
        if (value) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%.*s takes no value", (int)len, flag);
        }
        value = negated ? "off" : "on";
    } else if (!value) {
        if (*at + 1 >= argc) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%s needs a value: %s", flag, row->argument);
        }
        value = argv[++*at];
    }
    return set(row, row->long_name, value, HEARTH_OPTION_FLAG, options, msg);
}

/* ---------------------------------------------------------------------------------------------------- sources */

static int parse_flags(struct hearth_options *options, int argc, char *const argv[], struct hearth_errmsg *msg) {
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-') {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "unexpected argument '%s' (see hearth serve --help)", argv[i]);
        }
        const int err = parse_flag(options, argc, argv, &i, msg);
        if (err != HEARTH_OK) {
            return err;
        }
    }
    return HEARTH_OK;
}

static int parse_defaults(struct hearth_options *options, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < ROWS && err == HEARTH_OK; i++) {
        if (!rows[i].title) {
            err = set(&rows[i], rows[i].long_name, rows[i].preset, HEARTH_OPTION_DEFAULT, options, msg);
        }
    }
    return err;
}

static int parse_environment(struct hearth_options *options, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < ROWS && err == HEARTH_OK; i++) {
        char name[64];
        if (rows[i].title) {
            continue;
        }
        env_name(&rows[i], name);
        const char *text = getenv(name);
        if (text && *text) {
            err = set(&rows[i], name, text, HEARTH_OPTION_ENVIRONMENT, options, msg);
        }
    }
    return err;
}

/* "name = value", the name being a long one without its dashes. `place`: the file and the line. */
static int parse_setting(struct hearth_options *options, const char *place, char *line, struct hearth_errmsg *msg) {
    char name[72] = "--", origin[400];
    const size_t len = strcspn(line, "= \t");
    char *value = line + len + strspn(line + len, " \t");
    if (*value != '=' || len == 0) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: a line is an option, '=' and its value", place);
    }
    value++;
    value += strspn(value, " \t");
    (void)snprintf(name + 2, sizeof(name) - 2, "%.*s", (int)(len < 64 ? len : 64), line);
    const struct row *row = NULL;
    for (size_t i = 0; i < ROWS && !row; i++) {
        row = !rows[i].title && strcmp(rows[i].long_name, name) == 0 ? &rows[i] : NULL;
    }
    if (row && row->offset == offsetof(struct hearth_options, config)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: a file cannot name another one (config)", place);
    }
    if (!row) {
        const char *near = nearest_name(name);
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: unknown option %s%s%s%s (see hearth serve --help)", place,
                           name + 2, near ? ", did you mean " : "", near ? near + 2 : "", near ? "?" : "");
    }
    (void)snprintf(origin, sizeof(origin), "%s: %s", place, row->long_name + 2);
    return set(row, origin, value, HEARTH_OPTION_CONFIG, options, msg);
}

/* `path` is borrowed from a flag or the environment. */
static int parse_config(struct hearth_options *options, const char *path, struct hearth_errmsg *msg) {
    char *rest, *line, place[320];
    unsigned number = 0;
    int err = hearth_infile_read(path, &options->config_text, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    rest = (char *)options->config_text.data;
    while (err == HEARTH_OK && (line = hearth_infile_line(&rest, &number))) {
        (void)snprintf(place, sizeof(place), "%.300s:%u", path, number);
        err = hearth_infile_is_silent(line) ? HEARTH_OK : parse_setting(options, place, line, msg);
    }
    return err;
}

int hearth_options_parse(struct hearth_options *options, int argc, char *const argv[], enum hearth_options_ask *ask,
                         struct hearth_errmsg *msg) {
    memset(options, 0, sizeof(*options));
    *ask = HEARTH_OPTIONS_RUN;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *ask = HEARTH_OPTIONS_HELP;
            return HEARTH_OK;
        }
        if (strcmp(argv[i], "--version") == 0) {
            *ask = HEARTH_OPTIONS_VERSION;
            return HEARTH_OK;
        }
    }
    int err = parse_defaults(options, msg);
    err = err == HEARTH_OK ? parse_environment(options, msg) : err;
    err = err == HEARTH_OK ? parse_flags(options, argc, argv, msg) : err;
    const char *config = options->config;
    if (err == HEARTH_OK && config) { /* again, with the file in its place */
        memset(options, 0, sizeof(*options));
        err = parse_defaults(options, msg);
        err = err == HEARTH_OK ? parse_config(options, config, msg) : err;
        err = err == HEARTH_OK ? parse_environment(options, msg) : err;
        err = err == HEARTH_OK ? parse_flags(options, argc, argv, msg) : err;
    }
    return err;
}

void hearth_options_finish(struct hearth_options *options) {
    hearth_buf_finish(&options->config_text);
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_list(const struct hearth_option_list *a, const struct hearth_option_list *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        same = same_text(a->v[i], b->v[i]);
    }
    return same;
}

static bool same_value(const struct row *row, const void *a, const void *b) {
    switch (row->type) {
    case TEXT:
    case CHOICE:
        return same_text(*(const char *const *)a, *(const char *const *)b);
    case LIST:
        return same_list(a, b);
    case WHOLE:
    case SIZE:
        return *(const int64_t *)a == *(const int64_t *)b;
    case REAL:
        return memcmp(a, b, sizeof(double)) == 0;
    case SWITCH:
    case ALWAYS:
        break;
    }
    return *(const bool *)a == *(const bool *)b;
}

void hearth_options_compare(const struct hearth_options *before, const struct hearth_options *after,
                            void (*each)(void *user, const char *name, bool live), void *user) {
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *row = &rows[i];
        if (!row->title && !same_value(row, (const char *)before + row->offset, (const char *)after + row->offset)) {
            each(user, row->long_name, row->live);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- texts */

/* "-m, --model FILE", or for a switch "--metrics, --no-metrics". */
static bool append_flags(struct hearth_buf *out, const struct row *row, const char *quote) {
    bool ok = true;
    for (const char *name = row->names; *name;) {
        const size_t n = strcspn(name, " ");
        ok = ok && hearth_buf_printf(out, "%s%.*s%s, ", quote, (int)n, name, quote);
        name += n + (name[n] == ' ');
    }
    ok = ok &&
         hearth_buf_printf(out, "%s%s%s%s%s", quote, row->long_name, *row->argument ? " " : "", row->argument, quote);
    if (row->type == SWITCH) {
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

static bool append_help(struct hearth_buf *out, const struct row *row) {
    const size_t start = out->len;
    char text[512];
    bool ok = hearth_buf_text(out, "  ") && append_flags(out, row, "");
    const size_t width = out->len - start;
    const bool fits = width < HELP_INDENT;
    const bool preset = *row->preset && row->type != ALWAYS;
    (void)snprintf(text, sizeof(text), "%s%s%s%s", row->help, preset ? " [" : "", preset ? row->preset : "",
                   preset ? "]" : "");
    ok = ok && hearth_buf_printf(out, "%s%*s", fits ? "" : "\n", fits ? HELP_INDENT - (int)width : HELP_INDENT, "");
    return ok && append_wrapped(out, text) && hearth_buf_text(out, "\n");
}

bool hearth_options_help(struct hearth_buf *out) {
    bool ok = hearth_buf_text(out, "hearth serve [options]: serves a model over the OpenAI API\n");
    for (size_t i = 0; i < ROWS && ok; i++) {
        ok = rows[i].title ? hearth_buf_printf(out, "\n%s\n", rows[i].title) : append_help(out, &rows[i]);
    }
    return ok && hearth_buf_text(out, "\nOther\n"
                                      "  -h, --help                          This text\n"
                                      "  --version                           Versions of hearth and llama.cpp\n"
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
             "Switches take `on` and `off` there and in the environment. What is marked with ↻ is applied while the\n"
             "server runs, when the file has changed and the process gets SIGHUP: see [load.md](load.md).\n");
    struct hearth_buf cell = {0};
    for (size_t i = 0; i < ROWS && ok; i++) {
        const struct row *row = &rows[i];
        if (row->title) {
            ok = hearth_buf_printf(out, "\n## %s\n\n| Flag | Environment | Default | Meaning |\n|---|---|---|---|\n",
                                   row->title);
            continue;
        }
        char name[64];
        env_name(row, name);
        cell.len = 0;
        ok = append_flags(&cell, row, "`") && hearth_buf_text(out, "| ") &&
             append_escaped(out, (const char *)cell.data) &&
             hearth_buf_printf(out, " | `%s` | %s | ", name, *row->preset ? row->preset : "-") &&
             append_escaped(out, row->help) && hearth_buf_text(out, row->live ? " ↻ |\n" : " |\n");
    }
    hearth_buf_finish(&cell);
    return ok;
}
