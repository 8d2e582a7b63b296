/* Keys of clients, from --api-key and --api-key-file. */
#ifndef HEARTH_CLI_KEYS_H
#define HEARTH_CLI_KEYS_H

#include "api/api.h"
#include "cli/options.h"

struct hearth_key_list {
    struct hearth_api_key *keys; /* their texts are in here, too */
    size_t count, cap;
    struct hearth_buf flag_text, file_text; /* cut into strings */
};

/* Reads the keys that the options name; the list is zeroed before, and to be finished also after an error. Errors:
 * INVALID, IO, each with one line in `msg` that names the file and the line; NOMEM. */
int hearth_key_list_read(const struct hearth_options *options, struct hearth_key_list *list, struct hearth_errmsg *msg);
/* Whether settings that may stand behind a key, separated by blanks, are good. The text is cut. Errors: INVALID. */
int hearth_key_settings_check(const char *place, char *words, struct hearth_errmsg *msg);
void hearth_key_list_finish(struct hearth_key_list *list);

#endif
