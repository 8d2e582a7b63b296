/* What each client of a server lost (waste.c). */
#ifndef HEARTH_CLIENT_WASTE_H
#define HEARTH_CLIENT_WASTE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define CLIENT_WASTE_CLIENTS 256 /* those that come first; others are left out */
#define CLIENT_WASTE_CAUSES 16

/* Times in milliseconds. Everything is borrowed from the requests. */
struct client_waste_cause {
    const char *cause;
    double rank;
    size_t times;
    const json_t *shown; /* the verdict that stands for all of this cause */
};

struct client_waste {
    const char *client; /* "": it gives no name */
    size_t requests;
    double lost_ms, waited_ms;              /* computing again; waiting */
    uint64_t again_tokens, computed_tokens; /* of its prompts: computed again, of all that were computed */
    struct client_waste_cause causes[CLIENT_WASTE_CAUSES]; /* the main one first */
    size_t cause_count;
};

struct client_waste_list {
    struct client_waste *clients; /* the costliest first; owned */
    size_t count, requests;
    double lost_ms;
    uint64_t again_tokens, computed_tokens;
};

/* Whether a verdict of a request is about a loss. */
bool hearth_client_waste_counts(const json_t *verdict);
/* Fills `out` from an array of requests, the newest first. False: out of memory. */
bool hearth_client_waste(const json_t *requests, struct client_waste_list *out);
void hearth_client_waste_finish(struct client_waste_list *list);

#endif
