/* Parses options.
 *
 * Design. A value comes as text from one of four places and goes through one function. hearth's own defaults do so,
 * too: a default that its row would not accept fails in the first test that parses anything.
 *
 * The file of --config is found first, since a flag or a variable may name it; its values come between the defaults
 * and the environment. A flag that hearth does not have may be llama-server's; then the table of those flags
 * decides.
 *
 * Invariants. A struct that was parsed without an error holds, for each row, a value within the row's limits. */
#include "cli/options_internal.h"

#include "base/assert.h"
#include "base/infile.h"
#include "console/places.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int unknown_flag(const char *flag, size_t len, struct hearth_errmsg *msg) {
    char word[64];
    (void)snprintf(word, sizeof(word), "%.*s", (int)(len < 63 ? len : 63), flag);
    const bool no = strncmp(word, "--no-", 5) == 0;
    if (no) {
        memmove(word + 2, word + 5, strlen(word + 5) + 1);
    }
    const char *near = hearth_option_nearest(word);
    if (!near) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "unknown option %.*s (see hearth serve --help)", (int)len, flag);
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "unknown option %.*s, did you mean %s? (see hearth serve --help)",
                       (int)len, flag, near);
}

/* ---------------------------------------------------------------------------------------------------- values */

static void *value_of(const struct hearth_option_row *row, struct hearth_options *options) {
    return (char *)options + row->offset;
}

/* The power of 1024 that one of `letters`, in the order of the powers, stands for at *at; 1 where there is none. Steps
 * over it. */
static int64_t take_scale(const char *letters, char **at) {
    const char *letter = **at ? strchr(letters, tolower((unsigned char)**at)) : NULL;
    *at += letter != NULL;
    return letter ? (int64_t)1 << (10 * (letter - letters + 1)) : 1;
}

static int set_whole(const struct hearth_option_row *row, const char *origin, const char *text, int64_t *value,
                     struct hearth_errmsg *msg) {
    const bool size = row->type == HEARTH_OPTION_IS_SIZE;
    const char *letters = size ? "kmgt" : row->type == HEARTH_OPTION_IS_TOKENS ? "km" : "";
    const bool word = !size && row->least < 0 && (strcmp(text, "auto") == 0 || strcmp(text, "all") == 0);
    char *end = NULL;
    errno = 0;
    const long long n = word ? -1 : strtoll(text, &end, 10);
    const int64_t scale = !word && end != text ? take_scale(letters, &end) : 1;
    const double scaled = (double)n * (double)scale;
    if ((!word && (end == text || *end != '\0' || errno != 0)) || scaled < row->least || scaled > row->most) {
        return size ? hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a size such as 64M or 2G", origin, text)
                    : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a whole number from %.0f to %.0f", origin,
                                  text, row->least, row->most);
    }
    *value = n * scale;
    return HEARTH_OK;
}

static int set_real(const struct hearth_option_row *row, const char *origin, const char *text, double *value,
                    struct hearth_errmsg *msg) {
    char *end = NULL;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value >= row->least && *value <= row->most
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is not a number from %g to %g", origin, text,
                             row->least, row->most);
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

/* "on" or "off" for what people write instead; NULL: neither. */
static const char *switch_word(const char *text) {
    static const char *const on[] = {"on", "1", "true", "yes", "enabled"};
    static const char *const off[] = {"off", "0", "false", "no", "disabled"};
    for (size_t i = 0; i < sizeof(on) / sizeof(on[0]); i++) {
        if (strcmp(text, on[i]) == 0 || strcmp(text, off[i]) == 0) {
            return strcmp(text, on[i]) == 0 ? "on" : "off";
        }
    }
    return NULL;
}

static int set_switch(const char *origin, const char *text, bool *value, struct hearth_errmsg *msg) {
    const char *word = switch_word(text);
    if (!word) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is neither on nor off", origin, text);
    }
    *value = strcmp(word, "on") == 0;
    return HEARTH_OK;
}

/* Whether `text` is one of `words`, which '|' separates. */
static bool is_choice(const char *words, size_t len, const char *text) {
    const size_t n = strlen(text);
    for (size_t at = 0; at < len;) {
        const size_t word = strcspn(words + at, "|]");
        if (word == n && memcmp(words + at, text, n) == 0) {
            return true;
        }
        at += word + 1;
    }
    return false;
}

/* A flag whose argument is "[on|off]" may stand alone. */
static bool may_stand_alone(const struct hearth_option_row *row) {
    return row->argument[0] == '[';
}

static int set_choice(const struct hearth_option_row *row, const char *origin, const char *text, const char **value,
                      struct hearth_errmsg *msg) {
    const char *words = row->argument + may_stand_alone(row);
    const size_t len = strcspn(words, "]");
    const char *word = is_choice(words, len, text) ? text : switch_word(text);
    if (!word || !is_choice(words, len, word)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%s' is none of %.*s", origin, text, (int)len, words);
    }
    *value = word;
    return HEARTH_OK;
}

/* Whether "none" turns off what is stored at the row's path. */
static bool is_place(const struct hearth_option_row *row) {
    return row->offset == offsetof(struct hearth_options, kv_dir) ||
           row->offset == offsetof(struct hearth_options, session_db);
}

/* `origin` is how an error names the place that the text came from. */
static int set(const struct hearth_option_row *row, const char *origin, const char *text,
               enum hearth_option_source source, struct hearth_options *options, struct hearth_errmsg *msg) {
    void *value = value_of(row, options);
    options->sources[row - hearth_option_rows] = (unsigned char)source;
    switch (row->type) {
    case HEARTH_OPTION_IS_FILLED:
        if (!*text && source != HEARTH_OPTION_DEFAULT) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%s is given and empty (an unset variable?)", origin);
        }
        *(const char **)value = *text ? text : NULL;
        return HEARTH_OK;
    case HEARTH_OPTION_IS_TEXT:
        if (!*text && (source == HEARTH_OPTION_FLAG || source == HEARTH_OPTION_CONFIG) && hearth_option_is_path(row)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: the path is empty", origin);
        }
        if (is_place(row) && hearth_place_is_off(text)) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, HEARTH_PLACE_OFF, origin, text, text);
        }
        *(const char **)value = *text ? text : NULL;
        return HEARTH_OK;
    case HEARTH_OPTION_IS_LIST: return add_to_list(origin, text, source, value, msg);
    case HEARTH_OPTION_IS_CHOICE: return set_choice(row, origin, text, value, msg);
    case HEARTH_OPTION_IS_SIZE:
    case HEARTH_OPTION_IS_WHOLE:
    case HEARTH_OPTION_IS_TOKENS: return set_whole(row, origin, text, value, msg);
    case HEARTH_OPTION_IS_REAL: return set_real(row, origin, text, value, msg);
    case HEARTH_OPTION_IS_SWITCH: return set_switch(origin, text, value, msg);
    case HEARTH_OPTION_IS_ALWAYS: *(bool *)value = true; return HEARTH_OK;
    }
    return HEARTH_ERR_INVALID;
}

static int no_memory(struct hearth_errmsg *msg) {
    return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

/* A flag that is llama-server's and has no row in options.def. */
static int apply_llama_flag(const struct hearth_flag *flag, const char *name, enum hearth_option_source source,
                            struct hearth_options *options, struct hearth_errmsg *msg) {
    bool negated;
    if (flag->verdict == HEARTH_FLAG_SAME) {
        const size_t len = strcspn(flag->text, " ");
        const struct hearth_option_row *row = hearth_option_find(flag->text, len, &negated);
        return set(row, name, flag->text + len + 1, source, options, msg);
    }
    if (flag->verdict == HEARTH_FLAG_REFUSED) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: %s", name, flag->text);
    }
    return hearth_buf_printf(&options->notes, "%s: accepted, %s\n", name, flag->text) ? HEARTH_OK : no_memory(msg);
}

/* The same at argv[*at]; steps over its values. */
static int parse_llama_flag(struct hearth_options *options, int argc, char *const argv[], int *at,
                            struct hearth_errmsg *msg) {
    const char *equals = strchr(argv[*at], '=');
    const size_t len = equals ? (size_t)(equals - argv[*at]) : strlen(argv[*at]);
    const struct hearth_flag *flag = hearth_flag_find(argv[*at], len);
    char name[64];
    if (!flag) {
        return unknown_flag(argv[*at], len, msg);
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)len, argv[*at]);
    const int err = apply_llama_flag(flag, name, HEARTH_OPTION_FLAG, options, msg);
    const int values = flag->arguments - (equals != NULL);
    if (err == HEARTH_OK && (values < 0 || *at + values >= argc)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s %s", name, values < 0 ? "takes no value" : "needs a value");
    }
    *at += values;
    return err;
}

/* One flag at argv[*at]; steps over its value. */
static int parse_flag(struct hearth_options *options, int argc, char *const argv[], int *at,
                      struct hearth_errmsg *msg) {
    const char *flag = argv[*at];
    const char *equals = strchr(flag, '=');
    const size_t len = equals ? (size_t)(equals - flag) : strlen(flag);
    bool negated;
    const struct hearth_option_row *row = hearth_option_find(flag, len, &negated);
    if (!row) {
        return parse_llama_flag(options, argc, argv, at, msg);
    }
    const char *value = equals ? equals + 1 : NULL;
    if (row->type == HEARTH_OPTION_IS_SWITCH || row->type == HEARTH_OPTION_IS_ALWAYS) {
        if (value) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%.*s takes no value", (int)len, flag);
        }
        value = negated ? "off" : "on";
    } else if (!value && may_stand_alone(row) && (*at + 1 >= argc || argv[*at + 1][0] == '-')) {
        value = "on";
    } else if (!value) {
        if (*at + 1 >= argc) {
            return hearth_fail(msg, HEARTH_ERR_INVALID, "%s needs a value: %s", flag, row->argument);
        }
        value = argv[++*at];
    }
    return set(row, row->long_name, value, HEARTH_OPTION_FLAG, options, msg);
}

bool hearth_option_is_preset(const struct hearth_options *options, const char *name) {
    bool negated;
    const struct hearth_option_row *row = hearth_option_find(name, strlen(name), &negated);
    HEARTH_ASSERT(row != NULL);
    return options->sources[row - hearth_option_rows] == HEARTH_OPTION_DEFAULT;
}

/* ---------------------------------------------------------------------------------------------------- sources */

static int parse_flags(struct hearth_options *options, int argc, char *const argv[], struct hearth_errmsg *msg) {
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] != '-') {
            const char *dot = strrchr(argv[i], '.');
            return hearth_fail(msg, HEARTH_ERR_INVALID, "unexpected argument '%s'%s (see hearth serve --help)", argv[i],
                               dot != NULL && strcmp(dot, ".gguf") == 0 ? ": a model is named with -m" : "");
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
    for (size_t i = 0; i < hearth_option_row_count && err == HEARTH_OK; i++) {
        if (!hearth_option_rows[i].title) {
            err = set(&hearth_option_rows[i], hearth_option_rows[i].long_name, hearth_option_rows[i].preset,
                      HEARTH_OPTION_DEFAULT, options, msg);
        }
    }
    return err;
}

static int parse_environment(struct hearth_options *options, struct hearth_errmsg *msg) {
    int err = HEARTH_OK;
    for (size_t i = 0; i < hearth_option_row_count && err == HEARTH_OK; i++) {
        char name[64];
        if (hearth_option_rows[i].title) {
            continue;
        }
        hearth_option_env_name(&hearth_option_rows[i], name);
        const char *text = getenv(name);
        if (text && (*text || hearth_option_rows[i].type == HEARTH_OPTION_IS_FILLED)) {
            err = set(&hearth_option_rows[i], name, text, HEARTH_OPTION_ENVIRONMENT, options, msg);
        }
    }
    return err;
}

/* Whether a variable is an option's, or one that hearth's other commands, scripts and tests read. */
static bool is_known_variable(const char *name, size_t len) {
    static const char others[] = "HEARTH_BENCH_DIR HEARTH_BENCH_TOKENS HEARTH_BIN HEARTH_CACERT HEARTH_CACHE "
                                 "HEARTH_CHROMIUM HEARTH_CRASHES HEARTH_CUDA HEARTH_FUZZ_SECONDS HEARTH_FUZZ_WORDS "
                                 "HEARTH_HERMES HEARTH_JOBS HEARTH_LLAMA HEARTH_MODELS HEARTH_PEER HEARTH_POSTGRES "
                                 "HEARTH_PROGRAMS HEARTH_PYTHON HEARTH_REDIS HEARTH_SUITE HEARTH_TEMPLATES HEARTH_URL "
                                 "HEARTH_WORKERS HEARTH_WRITE";
    char own[HEARTH_OPTION_ENV_MAX];
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        if (!hearth_option_rows[i].title) {
            hearth_option_env_name(&hearth_option_rows[i], own);
            if (strlen(own) == len && memcmp(own, name, len) == 0) {
                return true;
            }
        }
    }
    return hearth_option_has_name(others, name, len);
}

/* A variable that begins like hearth's own and is none. */
static bool warn_of_own(struct hearth_buf *out, const char *name) {
    char word[HEARTH_OPTION_ENV_MAX], own[HEARTH_OPTION_ENV_MAX];
    (void)snprintf(word, sizeof(word), "--%s", name + strlen("HEARTH_"));
    for (char *p = word; *p; p++) {
        *p = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
    }
    const char *near = hearth_option_nearest(word);
    bool negated;
    if (near) {
        hearth_option_env_name(hearth_option_find(near, strlen(near), &negated), own);
    }
    return hearth_buf_printf(out, "environment: %s is not an option%s%s%s\n", name, near ? ": did you mean " : "",
                             near ? own : "", near ? "?" : " (docs/options.md lists them)");
}

/* A variable of llama-server. */
static bool warn_of_llama(struct hearth_buf *out, const char *name) {
    const struct hearth_flag *flag = hearth_flag_of_env(name);
    char own[HEARTH_OPTION_ENV_MAX];
    bool negated;
    if (!flag || flag->verdict != HEARTH_FLAG_HONOURED) {
        return hearth_buf_printf(out, "environment: %s is not read: hearth has options of its own\n", name);
    }
    hearth_option_env_name(hearth_option_find(flag->names, strcspn(flag->names, " "), &negated), own);
    return hearth_buf_printf(out, "environment: %s is not read: set %s\n", name, own);
}

static int warn_of_environment(struct hearth_options *options, struct hearth_errmsg *msg) {
    bool ok = true;
    for (char **entry = environ; *entry && ok; entry++) {
        char name[HEARTH_OPTION_ENV_MAX];
        const size_t len = strcspn(*entry, "=");
        (void)snprintf(name, sizeof(name), "%.*s", (int)(len < sizeof(name) - 1 ? len : sizeof(name) - 1), *entry);
        if (strncmp(name, "HEARTH_", 7) == 0 && !is_known_variable(name, strlen(name))) {
            ok = warn_of_own(&options->warnings, name);
        } else if (strncmp(name, "LLAMA_ARG_", 10) == 0 || strcmp(name, "LLAMA_API_KEY") == 0) {
            ok = warn_of_llama(&options->warnings, name);
        }
    }
    return ok ? HEARTH_OK : no_memory(msg);
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
    const struct hearth_option_row *row = NULL;
    for (size_t i = 0; i < hearth_option_row_count && !row; i++) {
        row = !hearth_option_rows[i].title && strcmp(hearth_option_rows[i].long_name, name) == 0
                  ? &hearth_option_rows[i]
                  : NULL;
    }
    if (row && row->offset == offsetof(struct hearth_options, config)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: a file cannot name another one (config)", place);
    }
    const struct hearth_flag *llama = row ? NULL : hearth_flag_find(name, strlen(name));
    const char *word = llama && llama->arguments == 0 ? switch_word(value) : NULL;
    if (word && strcmp(word, "off") == 0) {
        return HEARTH_OK; /* as if it did not stand there */
    }
    if (llama && llama->verdict != HEARTH_FLAG_HONOURED) {
        (void)snprintf(origin, sizeof(origin), "%s: %s", place, name + 2);
        return apply_llama_flag(llama, origin, HEARTH_OPTION_CONFIG, options, msg);
    }
    if (!row) {
        const char *near = hearth_option_nearest(name);
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
        return hearth_fail_of(msg, err, "--config");
    }
    rest = (char *)options->config_text.data;
    while (err == HEARTH_OK && (line = hearth_infile_line(&rest, &number))) {
        (void)snprintf(place, sizeof(place), "%.300s:%u", path, number);
        err = hearth_infile_is_silent(line) ? HEARTH_OK : parse_setting(options, place, line, msg);
    }
    return err;
}

/* What the command line asks for instead of a server. */
static enum hearth_options_ask asked_for(const char *arg) {
    static const struct {
        const char *flags;
        enum hearth_options_ask ask;
    } asks[] = {{"-h --help --usage", HEARTH_OPTIONS_HELP},
                {"--version", HEARTH_OPTIONS_VERSION},
                {"--list-devices", HEARTH_OPTIONS_DEVICES}};
    for (size_t i = 0; i < sizeof(asks) / sizeof(asks[0]); i++) {
        if (hearth_option_has_name(asks[i].flags, arg, strlen(arg))) {
            return asks[i].ask;
        }
    }
    return HEARTH_OPTIONS_RUN;
}

/* All sources, in the order of what wins. `config`: a file, or NULL. */
static int parse_all(struct hearth_options *options, const char *config, int argc, char *const argv[],
                     struct hearth_errmsg *msg) {
    int err = parse_defaults(options, msg);
    err = err == HEARTH_OK && config ? parse_config(options, config, msg) : err;
    err = err == HEARTH_OK ? parse_environment(options, msg) : err;
    return err == HEARTH_OK ? parse_flags(options, argc, argv, msg) : err;
}

int hearth_options_parse(struct hearth_options *options, int argc, char *const argv[], enum hearth_options_ask *ask,
                         struct hearth_errmsg *msg) {
    memset(options, 0, sizeof(*options));
    *ask = HEARTH_OPTIONS_RUN;
    for (int i = 0; i < argc; i++) {
        *ask = asked_for(argv[i]);
        if (*ask != HEARTH_OPTIONS_RUN) {
            return HEARTH_OK;
        }
    }
    int err = parse_all(options, NULL, argc, argv, msg);
    const char *config = options->config;
    if (err == HEARTH_OK && config) { /* again, with the file in its place */
        hearth_options_finish(options);
        memset(options, 0, sizeof(*options));
        err = parse_all(options, config, argc, argv, msg);
    }
    return err == HEARTH_OK ? warn_of_environment(options, msg) : err;
}

void hearth_options_finish(struct hearth_options *options) {
    hearth_buf_finish(&options->config_text);
    hearth_buf_finish(&options->notes);
    hearth_buf_finish(&options->warnings);
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

static bool same_value(const struct hearth_option_row *row, const void *a, const void *b) {
    switch (row->type) {
    case HEARTH_OPTION_IS_TEXT:
    case HEARTH_OPTION_IS_FILLED:
    case HEARTH_OPTION_IS_CHOICE: return same_text(*(const char *const *)a, *(const char *const *)b);
    case HEARTH_OPTION_IS_LIST: return same_list(a, b);
    case HEARTH_OPTION_IS_WHOLE:
    case HEARTH_OPTION_IS_TOKENS:
    case HEARTH_OPTION_IS_SIZE: return *(const int64_t *)a == *(const int64_t *)b;
    case HEARTH_OPTION_IS_REAL: return memcmp(a, b, sizeof(double)) == 0;
    case HEARTH_OPTION_IS_SWITCH:
    case HEARTH_OPTION_IS_ALWAYS: break;
    }
    return *(const bool *)a == *(const bool *)b;
}

void hearth_options_compare(const struct hearth_options *before, const struct hearth_options *after,
                            void (*each)(void *user, const char *name, bool live), void *user) {
    for (size_t i = 0; i < hearth_option_row_count; i++) {
        const struct hearth_option_row *row = &hearth_option_rows[i];
        if (!row->title && !same_value(row, (const char *)before + row->offset, (const char *)after + row->offset)) {
            each(user, row->long_name, row->live);
        }
    }
}
