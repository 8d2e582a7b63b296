/* See keys.h. A line of the file is
 *
 *     KEY [name=NAME] [weight=N] [class=interactive|side|background]     # and a comment
 *
 * Invariants. No key is there twice: what the file says of one that --api-key has, too, is taken, and one that the file
 * has twice is an error, as one of the lines would be ignored. */
#include "cli/keys.h"

#include "cli/infile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_LEAST 0.01
#define WEIGHT_MOST 1000.0
#define NAME_BYTES_MAX 40

static struct hearth_api_key *find(struct hearth_key_list *list, const char *text) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->keys[i].key, text) == 0) {
            return &list->keys[i];
        }
    }
    return NULL;
}

static struct hearth_api_key *add(struct hearth_key_list *list, const char *text) {
    if (list->count == list->cap) {
        const size_t cap = list->cap ? 2 * list->cap : 16;
        struct hearth_api_key *grown = realloc(list->keys, cap * sizeof(*grown));
        if (!grown) {
            return NULL;
        }
        list->keys = grown;
        list->cap = cap;
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

static int read_flag(struct hearth_key_list *list, const char *keys, struct hearth_errmsg *msg) {
    if (!hearth_buf_text(&list->flag_text, keys)) {
        return fail_nomem(msg);
    }
    char *rest = (char *)list->flag_text.data, *key;
    while ((key = strtok_r(rest, ",\r\n", &rest)) != NULL) {
        key = trimmed(key);
        if (*key != '\0' && !find(list, key) && !add(list, key)) {
            return fail_nomem(msg);
        }
    }
    return list->count > 0 ? HEARTH_OK : hearth_fail(msg, HEARTH_ERR_INVALID, "--api-key holds no key");
}

/* Names are printed where a blank or a quote would be misread. */
static bool is_name(const char *name) {
    const size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-");
    return len > 0 && name[len] == '\0' && len <= NAME_BYTES_MAX;
}

/* "name=alice". `place`: the file and the line. */
static int read_setting(const char *place, const char *word, struct hearth_api_key *key, struct hearth_errmsg *msg) {
    static const char *const classes[] = {"interactive", "side", "background"};
    if (strncmp(word, "name=", 5) == 0) {
        key->name = word + 5;
        return is_name(key->name) ? HEARTH_OK
                                  : hearth_fail(msg, HEARTH_ERR_INVALID,
                                                "%s: a name is made of up to %d letters, digits and . _ @ -", place,
                                                NAME_BYTES_MAX);
    }
    if (strncmp(word, "weight=", 7) == 0) {
        char *end;
        key->weight = strtod(word + 7, &end);
        const bool good = end != word + 7 && *end == '\0' && isfinite(key->weight) && key->weight >= WEIGHT_LEAST &&
                          key->weight <= WEIGHT_MOST;
        return good ? HEARTH_OK
                    : hearth_fail(msg, HEARTH_ERR_INVALID, "%s: %s: a weight is a number from %g to %g", place, word,
                                  WEIGHT_LEAST, WEIGHT_MOST);
    }
    for (int i = 0; strncmp(word, "class=", 6) == 0 && i < 3; i++) {
        if (strcmp(word + 6, classes[i]) == 0) {
            key->highest = (enum hearth_class)(HEARTH_CLASS_INTERACTIVE + i);
            return HEARTH_OK;
        }
    }
    return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: '%.60s' is none of name=NAME, weight=N, class=side|background",
                       place, word);
}

static int read_line(struct hearth_key_list *list, size_t from_flag, const char *place, char *line,
                     struct hearth_errmsg *msg) {
    char *rest = line, *word = strtok_r(rest, " \t", &rest);
    struct hearth_api_key *key = find(list, word);
    if (key && (size_t)(key - list->keys) >= from_flag) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: this key is in the file twice", place);
    }
    if (strchr(word, ',')) {
        return hearth_fail(msg, HEARTH_ERR_INVALID, "%s: one key in a line, and no comma in it", place);
    }
    key = key ? key : add(list, word);
    if (!key) {
        return fail_nomem(msg);
    }
    int err = HEARTH_OK;
    while (err == HEARTH_OK && (word = strtok_r(rest, " \t", &rest)) != NULL && *word != '#') {
        err = read_setting(place, word, key, msg);
    }
    return err;
}

static int read_file(struct hearth_key_list *list, const char *path, struct hearth_errmsg *msg) {
    const size_t from_flag = list->count;
    char place[320], *line;
    unsigned number = 0;
    size_t lines = 0;
    int err = hearth_infile_read(path, &list->file_text, msg);
    char *rest = (char *)list->file_text.data;
    while (err == HEARTH_OK && (line = hearth_infile_line(&rest, &number))) {
        (void)snprintf(place, sizeof(place), "%.300s:%u", path, number);
        if (!hearth_infile_is_silent(line)) {
            err = read_line(list, from_flag, place, line, msg);
            lines++;
        }
    }
    return err != HEARTH_OK || lines > 0 ? err : hearth_fail(msg, HEARTH_ERR_INVALID, "%s holds no key", path);
}

int hearth_key_list_read(const struct hearth_options *options, struct hearth_key_list *list,
                         struct hearth_errmsg *msg) {
    int err = options->api_key ? read_flag(list, options->api_key, msg) : HEARTH_OK;
    if (err == HEARTH_OK && options->api_key_file) {
        err = read_file(list, options->api_key_file, msg);
    }
    return err;
}

void hearth_key_list_finish(struct hearth_key_list *list) {
    hearth_buf_finish(&list->flag_text);
    hearth_buf_finish(&list->file_text);
    free(list->keys);
    *list = (struct hearth_key_list){0};
}
