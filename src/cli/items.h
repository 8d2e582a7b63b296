/* A conversation as readable text. Items are those of OpenAI's Responses API, in which turns are stored; messages of
 * chat completions are read, too. */
#ifndef HEARTH_CLI_ITEMS_H
#define HEARTH_CLI_ITEMS_H

#include <jansson.h>
#include <stdio.h>

struct hearth_items_print {
    FILE *out;
    json_t *calls; /* call_id: name of the function; made when the first call comes by */
};

/* Prints items (an array), each with an empty line behind it. Names of calls are remembered for their results. Text
 * cannot command the terminal. */
void hearth_items_print(struct hearth_items_print *print, const json_t *items);
void hearth_items_print_finish(struct hearth_items_print *print);

/* The text of the last message of `role` in an array of items that has any, or NULL. The caller's to free. */
char *hearth_items_last_text(const json_t *items, const char *role);

#endif
