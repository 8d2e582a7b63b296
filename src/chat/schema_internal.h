/* What the schema files share. See schema.c. */
#ifndef HEARTH_CHAT_SCHEMA_INTERNAL_H
#define HEARTH_CHAT_SCHEMA_INTERNAL_H

#include "base/buf.h"
#include "chat/chat.h"

#include <stdint.h>

/* ---- schema_maker.c ---- */

/* Why there is no stronger form. */
enum schema_fate {
    SCHEMA_FINE,
    SCHEMA_EMPTY,   /* no value is valid */
    SCHEMA_REFUSED, /* `msg` says why */
};

/* One schema being made stronger. Every value made on the way belongs to `owned`, so nothing is freed one by one. */
struct schema_maker {
    const json_t *root;
    json_t *owned; /* array */
    json_t *defs;  /* object: name of a definition → stronger form; null while it is being made */
    json_t *names; /* object: reference → name of its definition */
    json_t *lists; /* object: enum → object of its strings; null until one is searched. Borrowed from `owned` */
    struct hearth_buf path; /* the place in the schema: "properties.tags" */
    enum schema_fate fate;
    size_t visits;
    size_t way_bytes, ways_bytes; /* of the names on the way here, and on the ways to all that was made */
    struct hearth_errmsg msg;
};

enum {
    SCHEMA_DEPTH = 64,
    SCHEMA_VISITS = 20000,
    SCHEMA_CHOICES = 20000, /* that a definition may stand for */
    SCHEMA_REPEATS = 1000,  /* what is repeated more often is cut: llama.cpp's limit is 2000 */
    SCHEMA_NAME = 4096,     /* bytes of a property's name */
    SCHEMA_NAMES = 8 << 20, /* ways_bytes: names of rules repeat them */
};

/* The member of a constant that stands for GBNF, until hearth_chat_schema_fill(). */
#define HEARTH_SCHEMA_GBNF "hearth:gbnf"

/* unevaluatedProperties of a schema that everything else in the list came from: for names that none declares. */
#define HEARTH_SCHEMA_REST "hearth:rest"

/* Longer counts in a schema mean no more than this one. */
#define SCHEMA_MANY ((size_t)1 << 40)

/* Takes the reference and gives it back. NULL: memory was refused (base/memory.h); what is made with it is NULL, too.
 */
json_t *hearth_schema_own(struct schema_maker *m, json_t *value);
void hearth_schema_append(json_t *list, const json_t *value);
/* NULL, with the fate REFUSED and "path.keyword: why". `keyword` may be NULL. */
json_t *hearth_schema_refuse(struct schema_maker *m, const char *keyword, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* NULL, with the fate EMPTY. */
json_t *hearth_schema_empty(struct schema_maker *m);
/* Appends to the path; returns its length before, to cut it back to. */
size_t hearth_schema_enter(struct schema_maker *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hearth_schema_leave(struct schema_maker *m, size_t len);

/* Everything of one schema in its place is well formed. False: refused. */
bool hearth_schema_check_form(struct schema_maker *m, const json_t *schema);
/* Whether a schema says anything about values, with other keywords than `but`. */
bool hearth_schema_says(const json_t *schema, const char *but);

/* A type's bit; whole numbers and others are apart, "number" is both. */
enum {
    NULLS = 1,
    BOOLEANS = 2,
    WHOLES = 4,
    FRACTIONS = 8,
    NUMBERS = WHOLES | FRACTIONS,
    STRINGS = 16,
    ARRAYS = 32,
    OBJECTS = 64,
    ANYTHING = 127
};

/* The types of "type", a name or a list of names. 0: refused. */
unsigned hearth_schema_types(struct schema_maker *m, const json_t *type);
/* The one type of a value, and whether it is among those of "type". */
unsigned hearth_schema_type_of(const json_t *value);
bool hearth_schema_allows(const json_t *value, const json_t *type);
/* The types that the keywords of a flat schema speak of. */
unsigned hearth_schema_implied_types(const json_t *schema);
enum schema_verdict { SCHEMA_NO, SCHEMA_YES, SCHEMA_UNKNOWN };
/* Whether a value is valid by the keywords for its type. */
enum schema_verdict hearth_schema_judge(const json_t *value, const json_t *schema);
/* A count ("maxItems") over all schemas: the largest of minima, the least of maxima. False: refused. */
bool hearth_schema_count(struct schema_maker *m, const json_t *flat, const char *keyword, bool least, size_t *count);

/* schema_make.c */
/* The stronger form of all of `all` (an array of schemas) at once. Borrowed from `owned`. */
json_t *hearth_schema_make(struct schema_maker *m, const json_t *all, size_t depth);

/* schema_compound.c */
json_t *hearth_schema_array(struct schema_maker *m, const json_t *flat, size_t depth);
json_t *hearth_schema_object(struct schema_maker *m, const json_t *flat, size_t depth);

/* schema_value.c */
/* Whether a value is valid by the keywords of one flat schema. `place`: where in the schema's enum it stands, if it was
 * taken from there. */
enum schema_verdict hearth_schema_holds(struct schema_maker *m, const json_t *value, size_t place,
                                        const json_t *schema);
json_t *hearth_schema_number(struct schema_maker *m, const json_t *flat, bool integers);
json_t *hearth_schema_string(struct schema_maker *m, const json_t *flat);
/* The constant that stands for the numbers of a form with bounds: GBNF, until hearth_chat_schema_fill(). */
json_t *hearth_schema_stand_in(struct schema_maker *m, const json_t *form);

/* schema_text.c */
/* A pattern for common's converter, which takes it as grammar of the JSON text between the quotes: what matches the
 * regular expression (anywhere, unless it is anchored) with min to max characters. Error: why it cannot be done. */
const char *hearth_schema_pattern(const char *regex, size_t min, size_t max, struct hearth_buf *out);
/* The same for any text. */
void hearth_schema_any_text(size_t min, size_t max, struct hearth_buf *out);

/* schema_range.c */
/* Appends GBNF for the decimal numbers from `low` to `high`; `open_*`: without the bound itself. False: none. */
bool hearth_schema_range(double low, bool open_low, double high, bool open_high, struct hearth_buf *out);
/* The same for whole numbers. */
void hearth_schema_whole_range(int64_t low, int64_t high, struct hearth_buf *out);

#endif
