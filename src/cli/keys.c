/* See keys.h. A line of the file is
 *
 *     KEY [name=NAME] [weight=N] [class=interactive|side|background] [scope=infer,sessions,admin]
 *         [rpm=N] [tpm=N] [running=N] [stored=N] [stored-bytes=N] [stored-sessions=N]     # and a comment
 *
 * with the key as it is or hashed (api/key_hash.h). Keys of the file may do everything but what admin is for, unless
 * scope= says otherwise; those of --api-key may do everything.
 *
 * Invariants. No key is there twice, hashed or not: what the file says of one that --api-key has, too, is taken, and
 * one that the file has twice is an error, as one of the lines would be ignored; so is a setting twice in a line. */
#include "cli/keys.h"

#include "api/key_hash.h"
#include "base/infile.h"
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define WEIGHT_LEAST 0.01
#define WEIGHT_MOST 1000.0
#define NAME_BYTES_MAX 40

/* Whether `hashed` is the hash of `plain`. */
static bool is_hash_of(const char *hashed, const char *plain) {
    struct hearth_key_hash hash, made;
    return hearth_key_hash_read(hashed, &hash) && hearth_key_hash_make(hash.salt, plain, &made) &&
           hearth_key_hash_equal(&hash, &made);
}

static bool same_key(const char *a, const char *b) {
    const bool hashed = hearth_key_hash_is(a);
    if (hashed == hearth_key_hash_is(b)) {
        return (hashed ? strcasecmp : strcmp)(a, b) == 0;
    }
    return hashed ? is_hash_of(a, b) : is_hash_of(b, a);
}

static struct hearth_api_key *find(struct hearth_key_list *list, const char *text) {
    for (size_t i = 0; i < list->count; i++) {
        if (same_key(list->keys[i].key, text)) {
            return &list->keys[i];
        }
    }
    return NULL;
}

static struct hearth_api_key *add(struct hearth_key_list *list, const char *text) {
    if (!HEARTH_BUF_ROOM(list->keys, list->count, list->cap)) {
        return NULL;
    }
    list->keys[list->count] = (struct hearth_api_key){.key = text};
    return &list->keys[list->count++];
}

static int fail_nomem(struct hearth_errmsg *msg) {
    return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
}

/* Without blanks at its ends; in place. */
static char *trimmed(char *text) {
    text += strspn(text, " \t");
    for (size_t len = strlen(text); len > 0 && strchr(" \t", text[len - 1]) != NULL;) {
        text[--len] = '\0';
    }
    return text;
}

/* What no client could send is not taken for a key. */
static int check_key(const char *place, const char *key, struct hearth_errmsg *msg) {
    struct hearth_key_hash hash;
    size_t len = 0;
    if (hearth_key_hash_is(key) && !hearth_key_hash_read(key, &hash)) {
        return hearth_fail(msg, HEARTH_ERR_INVALID,
                           "%s: a hashed key is sha256:SALT:HEX or sha256:HEX (hearth keys hash makes one)", place);
    }
    while (key[len] != '\0' && (unsigned char)key[len] >= ' ' && key[len] != 0x7F) {
        len++;
    }
    return key[len] == '\0' && len < HEARTH_KEY_BYTES_MAX
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: a key has less than %d bytes and no control characters",
                             place, HEARTH_KEY_BYTES_MAX);
}

static int read_flag(struct hearth_key_list *list, const char *keys, struct hearth_errmsg *msg) {
    if (!hearth_buf_text(&list->flag_text, keys)) {
        return fail_nomem(msg);
    }
    char *rest = (char *)list->flag_text.data, *key;
    int err = HEARTH_OK;
    while (err == HEARTH_OK && (key = strtok_r(rest, ",\r\n", &rest)) != NULL) {
        key = trimmed(key);
        err = check_key("--api-key", key, msg);
        if (err == HEARTH_OK && *key != '\0' && !find(list, key) && !add(list, key)) {
            return fail_nomem(msg);
        }
    }
    return err != HEARTH_OK || list->count > 0 ? err : hearth_fail(msg, HEARTH_ERR_INVALID, "--api-key holds no key");
}

/* Names are printed where a blank or a quote would be misread. */
static bool is_name(const char *name) {
    const size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-");
    return len > 0 && name[len] == '\0' && len <= NAME_BYTES_MAX;
}

static int bad_setting(const char *place, const char *word, const char *cause, struct hearth_errmsg *msg) {
    return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: %.60s: %s", place, word, cause);
}

static int read_name(const char *place, const char *word, const char *value, struct hearth_api_key *key,
                     struct hearth_errmsg *msg) {
    (void)word;
    key->name = value;
    return is_name(value)
               ? HEARTH_OK
               : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: a name is made of up to %d letters, digits and . _ @ -",
                             place, NAME_BYTES_MAX);
}

static int read_weight(const char *place, const char *word, const char *value, struct hearth_api_key *key,
                       struct hearth_errmsg *msg) {
    char *end;
    key->weight = strtod(value, &end);
    const bool good = end != value && *end == '\0' && isfinite(key->weight) && key->weight >= WEIGHT_LEAST &&
                      key->weight <= WEIGHT_MOST;
    return good ? HEARTH_OK
                : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: %s: a weight is a number from %g to %g", place, word,
                              WEIGHT_LEAST, WEIGHT_MOST);
}

static int read_class(const char *place, const char *word, const char *value, struct hearth_api_key *key,
                      struct hearth_errmsg *msg) {
    static const char *const classes[] = {"interactive", "side", "background"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, classes[i]) == 0) {
            key->highest = (enum hearth_class)(HEARTH_CLASS_INTERACTIVE + i);
            return HEARTH_OK;
        }
    }
    return bad_setting(place, word, "a class is interactive, side or background", msg);
}

/* "infer,sessions" */
static int read_scopes(const char *place, const char *word, const char *value, struct hearth_api_key *key,
                       struct hearth_errmsg *msg) {
    static const struct {
        const char *name;
        unsigned bit;
    } scopes[] = {
#define X(constant, text, number, help) {#text, number},
        HEARTH_SCOPE_TABLE(X)
#undef X
    };
    key->scopes = 0;
    for (const char *at = value;;) {
        const size_t len = strcspn(at, ",");
        unsigned bit = 0;
        for (size_t i = 0; i < sizeof(scopes) / sizeof(scopes[0]); i++) {
            bit |= strlen(scopes[i].name) == len && memcmp(scopes[i].name, at, len) == 0 ? scopes[i].bit : 0;
        }
        if (bit == 0) {
            return bad_setting(place, word, "scopes are infer, sessions and admin, separated by commas", msg);
        }
        key->scopes |= bit;
        if (at[len] == '\0') {
            return HEARTH_OK;
        }
        at += len + 1;
    }
}

/* A whole number of at least 1, in which k, m and g stand for thousands, millions and billions. */
static bool read_count(const char *value, int64_t most, int64_t *out) {
    char *end = NULL;
    errno = 0;
    const long long n = strtoll(value, &end, 10);
    const int64_t scale = *end == 'k' ? 1000 : *end == 'm' ? 1000000 : *end == 'g' ? 1000000000 : 1;
    end += scale > 1;
    *out = n > 0 && n <= most / scale ? n * scale : 0;
    return *value >= '0' && *value <= '9' && *end == '\0' && errno == 0 && *out > 0;
}

/* One of `small` and `large` is where the limit goes. */
static int read_limit(const char *place, const char *word, const char *value, uint32_t *small, uint64_t *large,
                      struct hearth_errmsg *msg) {
    int64_t count;
    if (!read_count(value, small ? UINT32_MAX : INT64_MAX, &count)) {
        return bad_setting(place, word, "a limit is a whole number from 1, such as 60, 100k, 2m or 1g", msg);
    }
    if (small) {
        *small = (uint32_t)count;
    } else {
        *large = (uint64_t)count;
    }
    return HEARTH_OK;
}

/* "name=alice". `place`: the file and the line. `seen`: which settings it has had. */
static int read_setting(const char *place, const char *word, struct hearth_api_key *key, unsigned *seen,
                        struct hearth_errmsg *msg) {
    struct hearth_api_limits *limits = &key->limits;
    const struct {
        const char *name;
        int (*read)(const char *place, const char *word, const char *value, struct hearth_api_key *key,
                    struct hearth_errmsg *msg); /* NULL: it is a limit */
        uint32_t *small;
        uint64_t *large;
    } settings[] = {{"name=", .read = read_name},
                    {"weight=", .read = read_weight},
                    {"class=", .read = read_class},
                    {"scope=", .read = read_scopes},
                    {"rpm=", .small = &limits->requests_per_minute},
                    {"tpm=", .small = &limits->tokens_per_minute},
                    {"running=", .small = &limits->running},
                    {"stored=", .large = &limits->stored.tokens},
                    {"stored-bytes=", .large = &limits->stored.bytes},
                    {"stored-sessions=", .large = &limits->stored.sessions}};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        const size_t len = strlen(settings[i].name);
        if (strncmp(word, settings[i].name, len) == 0) {
            if ((*seen & 1u << i) != 0) {
                return bad_setting(place, word, "it is there twice", msg);
            }
            *seen |= 1u << i;
            return settings[i].read ? settings[i].read(place, word, word + len, key, msg)
                                    : read_limit(place, word, word + len, settings[i].small, settings[i].large, msg);
        }
    }
    /* It is not shown: it may be the key. */
    return hearth_fail(msg, HEARTH_ERR_INVALID,
                       "%s: behind the key may stand name=, weight=, class=, scope=, rpm=, tpm=, running=, stored=, "
                       "stored-bytes= and stored-sessions=, and nothing else",
                       place);
}

int hearth_key_settings_check(const char *place, char *words, struct hearth_errmsg *msg) {
    struct hearth_api_key key = {.key = "x"};
    char *rest = words, *word;
    unsigned seen = 0;
    int err = HEARTH_OK;
    while (err == HEARTH_OK && (word = strtok_r(rest, " ", &rest)) != NULL) {
        err = read_setting(place, word, &key, &seen, msg);
    }
    return err;
}

static int read_line(struct hearth_key_list *list, size_t from_flag, const char *place, char *line, bool *hashed,
                     struct hearth_errmsg *msg) {
    char *rest = line, *word = strtok_r(rest, " \t", &rest);
    struct hearth_api_key *key = find(list, word);
    if (key && (size_t)(key - list->keys) >= from_flag) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: this key is in the file twice", place);
    }
    if (strchr(word, ',')) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: one key in a line, and no comma in it", place);
    }
    *hashed = *hashed && hearth_key_hash_is(word);
    int err = check_key(place, word, msg);
    if (err != HEARTH_OK) {
        return err;
    }
    key = key ? key : add(list, word);
    if (!key) {
        return fail_nomem(msg);
    }
    key->scopes = HEARTH_SCOPE_INFER | HEARTH_SCOPE_SESSIONS;
    unsigned seen = 0;
    while (err == HEARTH_OK && (word = strtok_r(rest, " \t", &rest)) != NULL && *word != '#') {
        err = read_setting(place, word, key, &seen, msg);
    }
    return err;
}

/* Keys as they are should be the server's alone. */
static void warn_of_readers(const char *path) {
    struct stat about;
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & (S_IRGRP | S_IROTH)) != 0) {
        hearth_log(HEARTH_LOG_WARN,
                   "%s: other users of this machine can read the keys in it (chmod 600, or hash them: "
                   "hearth keys hash)",
                   path);
    }
}

static int read_file(struct hearth_key_list *list, const char *path, struct hearth_errmsg *msg) {
    const size_t from_flag = list->count;
    char place[320], *line;
    unsigned number = 0;
    size_t lines = 0;
    bool hashed = true;
    int err = hearth_infile_read(path, &list->file_text, msg);
    char *rest = (char *)list->file_text.data;
    while (err == HEARTH_OK && (line = hearth_infile_line(&rest, &number))) {
        (void)snprintf(place, sizeof(place), "%.300s:%u", path, number);
        if (!hearth_infile_is_silent(line)) {
            err = read_line(list, from_flag, place, line, &hashed, msg);
            lines++;
        }
    }
    if (err == HEARTH_OK && !hashed) {
        warn_of_readers(path);
    }
    return err != HEARTH_OK || lines > 0 ? err : hearth_fail(msg, HEARTH_ERR_INVALID, "%s holds no key", path);
}

int hearth_key_list_read(const struct hearth_options *options, struct hearth_key_list *list,
                         struct hearth_errmsg *msg) {
    int err = options->api_key ? read_flag(list, options->api_key, msg) : HEARTH_OK;
    if (err == HEARTH_OK && options->api_key_file) {
        err = hearth_fail_of(msg, read_file(list, options->api_key_file, msg), "--api-key-file");
    }
    return err;
}

void hearth_key_list_finish(struct hearth_key_list *list) {
    hearth_buf_finish(&list->flag_text);
    hearth_buf_finish(&list->file_text);
    free(list->keys);
    *list = (struct hearth_key_list){0};
}
