/* Histories in which every place holds the texts of all the control tokens that a chat template has, and what becomes
 * of them in the prompt. */
#ifndef HEARTH_TESTS_POISON_H
#define HEARTH_TESTS_POISON_H

#include "chat/chat.h"
#include "engine/engine.h"

struct poison_result {
    size_t places;  /* where a history can have such a text: content of each role, names, arguments, tools, … */
    size_t open;    /* of these, places where it becomes special tokens */
    size_t without; /* of these, places where it would become some without guards */
    size_t changed; /* of these, places where the prompt has another text than without guards */
};

/* The engine has the template's markers (support/markers.h), with words or without. What is open is printed. */
struct poison_result poison_try(struct hearth_engine *engine, struct hearth_chat *chat, const char *name);

#endif
