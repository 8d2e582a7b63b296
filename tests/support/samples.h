/* Replies as models sample them, for a chat template: what the template would print, or where it prints a reply of the
 * past otherwise than a model writes it, put together from parts of it, or by hand. */
#ifndef HEARTH_TESTS_SAMPLES_H
#define HEARTH_TESTS_SAMPLES_H

#include "chat/chat.h"

enum { SAMPLES_REPLIES = 7 };

struct sample {
    char *text; /* NULL: llama.cpp's parser for the template reads nothing as this reply. Caller frees. */
    bool plain; /* arguments without null and without empty values: with them there is no such text */
    bool one;   /* one call for two */
};

/* What the replies are called. */
extern const char *const samples_names[SAMPLES_REPLIES];

struct sample sample_make(struct hearth_chat *chat, const char *template_name, size_t reply, const json_t *tools);

#endif
