/* A sim engine whose vocabulary has the markers of a chat template as control tokens, as a real model's has: without
 * them, where a reply ends and which texts are cut would be another question than the one that is asked. */
#ifndef HEARTH_TESTS_MARKERS_H
#define HEARTH_TESTS_MARKERS_H

#include "engine/engine.h"

/* Adds them to an engine; one engine of a process at a time. */
void markers_add(struct hearth_engine *engine, const char *template_text);
/* These, and the words of its markup ("<tool_call>", "</think>") as user-defined tokens. */
void markers_add_words(struct hearth_engine *engine, const char *template_text);
/* Of the markers, all or the control tokens: number and texts; and whether a token is one of all. */
size_t markers_count(bool words);
const char *markers_text(size_t i);
bool markers_is(hearth_token token);
void markers_finish(void);

#endif
