/* Which part of a reply is the syntax of a tool call; pure, byte by byte.
 *
 * Syntax (what a call looks like: tags, keys, punctuation, the function's name) is sampled greedily, text and argument
 * values with the request's own temperature. Two kinds of calls:
 *
 *   JSON     {"name": "f", "arguments": {"city": "Oslo", "days": [1, 2]}}   values stand inside of the arguments
 *            f[ARGS]{"city": "Oslo"}                                        the object is the arguments
 *   tagged   <parameter=city>\nOslo\n</parameter>                           values stand between prefix and suffix
 *
 * It is a guide for sampling, not a parser: whatever is odd leads back to text, and nothing depends on being right. */
#ifndef HEARTH_SCHED_SYNTAX_H
#define HEARTH_SCHED_SYNTAX_H

#include "sched/service.h"

#include <stdbool.h>

#define HEARTH_SYNTAX_TAIL 64
#define HEARTH_SYNTAX_DEPTH 64

struct hearth_syntax {
    const struct hearth_call_syntax *calls; /* borrowed; NULL: everything is text */
    enum {
        HEARTH_SYNTAX_TEXT,
        HEARTH_SYNTAX_BEFORE, /* between what begins a call and its object */
        HEARTH_SYNTAX_JSON,
        HEARTH_SYNTAX_TAGS,
        HEARTH_SYNTAX_VALUE,  /* of a tag */
        HEARTH_SYNTAX_AFTER,  /* behind an object: a closing tag, another call, or text */
    } place;
    uint8_t tail[HEARTH_SYNTAX_TAIL]; /* the last bytes */
    size_t tail_len;
    size_t bytes; /* since BEFORE or TAGS began */
    bool named;   /* BEFORE held a word: the function's name, so the object is its arguments */
    bool in_tag;  /* AFTER: inside of < > */
    /* JSON */
    int depth;
    bool object[HEARTH_SYNTAX_DEPTH + 1]; /* by depth: an object, not an array */
    enum { HEARTH_SYNTAX_KEY, HEARTH_SYNTAX_COLON, HEARTH_SYNTAX_ITEM, HEARTH_SYNTAX_NEXT } expect;
    bool in_string, in_key, in_scalar, escaped;
    bool keyed;      /* the outermost object has had a key */
    bool arguments;  /* the last key says that its value is the arguments */
    int values_from; /* depth from which on everything is an argument value; 0 = not yet */
    char key[16];
    size_t key_len;
};

/* `calls` lives as long. */
void hearth_syntax_init(struct hearth_syntax *syntax, const struct hearth_call_syntax *calls);
/* Whether the next byte belongs to the syntax of a call. */
bool hearth_syntax_next(const struct hearth_syntax *syntax);
void hearth_syntax_feed(struct hearth_syntax *syntax, const char *text, size_t len);

#endif
