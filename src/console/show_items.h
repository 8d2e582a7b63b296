/* A conversation as readable text. Items are those of OpenAI's Responses API, in which turns are stored; messages of
 * chat completions are read, too. */
#ifndef HEARTH_CONSOLE_SHOW_ITEMS_H
#define HEARTH_CONSOLE_SHOW_ITEMS_H

#include <jansson.h>
#include <stdio.h>

struct hearth_show_items {
    FILE *out;
    json_t *calls; /* call_id: name of the function; made when the first call comes by */
};

/* Prints items (an array), each with an empty line behind it. Names of calls are remembered for their results. Text
 * cannot command the terminal. */
void hearth_show_items(struct hearth_show_items *print, const json_t *items);
void hearth_show_items_finish(struct hearth_show_items *print);

/* The text of the last message of `role` in an array of items that has any, or NULL. The caller's to free. */
char *hearth_show_last_text(const json_t *items, const char *role);

#endif
