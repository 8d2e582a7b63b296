/* What commands print for people: complaints, numbers, text of others, questions, progress. */
#ifndef HEARTH_CONSOLE_SHOW_H
#define HEARTH_CONSOLE_SHOW_H

#include "base/log.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* From now on complaints begin with "hearth" and the name of a tool: "hearth kv". */
void hearth_show_as(const char *tool);
/* One line on stderr; returns `status`. */
int hearth_complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* From now on complaints are copied to `line` instead, without the name; NULL: they are printed again. */
void hearth_complain_into(char *line, size_t cap);
/* A log sink that prints such lines. */
void hearth_show_log(void *user, enum hearth_log_level level, const char *line);

struct hearth_shown {
    char text[48];
};
struct hearth_shown hearth_show_bytes(uint64_t bytes);                                 /* "12.3 MiB" */
struct hearth_shown hearth_show_count(uint64_t n);                                     /* "12,288" */
struct hearth_shown hearth_show_age(int64_t used_us);                                  /* of a Unix time: "5 min" */
struct hearth_shown hearth_show_number(uint64_t n, const char *one, const char *many); /* "12,288 turns" */
const char *hearth_plural(uint64_t n, const char *one, const char *many);
/* The word of a list that is nearest to `word`, or NULL when none is near. For "did you mean". */
const char *hearth_show_nearest(const char *word, const char *const *list, size_t n);

/* Prints text of a prompt: on one line, nothing that a terminal would obey, at most `columns` wide. Returns the width.
 * Shape: valid UTF-8. */
int hearth_show_text(FILE *out, const char *text, int columns);
/* The same text with its lines and tabs. `indent` stands before each line that is not empty, the first one only if
 * `*fresh`, which says whether a line has not begun yet and is updated: text can come in pieces. */
void hearth_show_lines(FILE *out, const char *text, const char *indent, bool *fresh);
int hearth_show_columns(void); /* of the terminal on stdout; a large number elsewhere */

/* Dim text on a terminal: the sequences that begin and end it, or "". */
const char *hearth_show_dim(FILE *out);
const char *hearth_show_plain(FILE *out);

/* An object of numbers. NULL: out of memory. */
struct hearth_show_member {
    const char *name;
    uint64_t value;
};
json_t *hearth_show_members(const struct hearth_show_member *members, size_t count);
#define HEARTH_SHOW_MEMBERS(...)                                          \
    hearth_show_members((const struct hearth_show_member[]){__VA_ARGS__}, \
                        sizeof((const struct hearth_show_member[]){__VA_ARGS__}) / sizeof(struct hearth_show_member))

/* Prints a document on stdout and frees it. Returns an exit status; NULL: out of memory. */
int hearth_show_json(json_t *root);
int hearth_show_json_to(FILE *out, json_t *root);
/* At the end of a program: returns `status`, or another one after a complaint that standard output could not be
 * written. If it is a pipe whose reader has ended, the process ends by SIGPIPE, without a complaint. */
int hearth_show_end(int status);

/* Asks "… [y/N] " on stderr when stdin is a terminal. True: yes, or stdin is no terminal. */
bool hearth_show_asked(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* On stderr, when that is a terminal; else nothing at all. */
void hearth_show_progress(const char *what, uint64_t done, uint64_t total, bool bytes);
void hearth_show_progress_end(void);

#endif
