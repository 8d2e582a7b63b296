/* Finds what the store has at the places of a prompt.
 *
 * A block's index is a hash of all items that hang there, and grows with each branch of a popular head. Only the part
 * of it that a prompt can use is asked for:
 *
 *     round 1    of each place HSCAN of the index, its first bucket: mostly that is all of it; and SMEMBERS of the ends
 *     round 2    where it is not all: HMGET of the names that the prompt's tokens give with each of the ends
 *     rounds 3…  HMGET of what these say they stand on, until nothing new is named
 *
 * An end is a kind, an offset and a length: there are no more of them than a block has, while names are without number.
 * What an item stands on is the item with the state before it in its block, in which it branches off: it may go on with
 * tokens that are not the prompt's. The cover of OLD is NEW where NEW has replaced OLD; the cover of "first" is the
 * item that was written first and begins where the block does, for a prompt that branches off it anew.
 *
 * Each header becomes a FOUND, and what was known of these places and is not there any more a LOST; then comes SOUGHT.
 * A place without tokens is asked for everything, in one reply: only the cache's own notes hang on such a place. */
#include "tier/remote_engine.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCAN_COUNT "256"
#define NAMES_AT_ONCE 256 /* of a command */
#define WISHES_MAX 4096   /* of a seek */
#define ROUNDS_MAX 16

enum asked_for { ALL, SCAN, ENDS, FIRST, HEADERS, COVERS };

/* A command that was sent; replies come in this order. */
struct remote_ask {
    enum asked_for what;
    size_t place, first, n; /* wishes [first, first + n) */
};

struct remote_wish {
    size_t place;
    struct hearth_digest name;
};

struct remote_seek {
    struct hearth_backing_place *places;
    bool *many;  /* of each place: the index was longer than a bucket */
    bool *moved; /* another node of the cluster has it */
    size_t n;
    struct remote_ask *asks;
    size_t ask_n, ask_cap;
    struct remote_wish *wishes;
    size_t wish_n, wish_cap, wished; /* wished: how many were asked for */
    int round;
};

struct remote_seek *hearth_remote_seek_make(const struct hearth_backing_place *places, size_t n) {
    struct remote_seek *seek = calloc(1, sizeof *seek);
    struct hearth_backing_place *copy = hearth_backing_places_copy(places, n);
    bool *flags = calloc(n, 2 * sizeof *flags);
    if (!seek || !copy || !flags) {
        free(seek);
        free(copy);
        free(flags);
        return NULL;
    }
    *seek = (struct remote_seek){.places = copy, .many = flags, .moved = flags + n, .n = n};
    return seek;
}

void hearth_remote_seek_destroy(struct remote_seek *seek) {
    if (seek) {
        free(seek->places);
        free(seek->many); /* and `moved` */
        free(seek->asks);
        free(seek->wishes);
        free(seek);
    }
}

/* ---- asking ---- */

static void ask(struct remote_op *op, const struct remote_ask *what, int argc, const char **argv) {
    struct remote_seek *seek = op->seek;
    if (!HEARTH_BUF_ROOM(seek->asks, seek->ask_n, seek->ask_cap)) {
        op->lost = true;
        return;
    }
    op->base = seek->places[what->place].base;
    if (hearth_remote_send(op, argc, argv, NULL)) {
        seek->asks[seek->ask_n++] = *what;
    }
}

static void ask_round_one(struct remote_op *op) {
    const struct remote_seek *seek = op->seek;
    for (size_t i = 0; i < seek->n; i++) {
        char index[REMOTE_KEY_BYTES], ends[REMOTE_KEY_BYTES];
        hearth_remote_key_block(&op->link->remote->model, REMOTE_INDEX, seek->places[i].base, index);
        hearth_remote_key_block(&op->link->remote->model, REMOTE_ENDS, seek->places[i].base, ends);
        const char *all[] = {"HGETALL", index}, *scan[] = {"HSCAN", index, "0", "COUNT", SCAN_COUNT};
        const char *members[] = {"SMEMBERS", ends};
        if (!seek->places[i].tokens) {
            ask(op, &(struct remote_ask){.what = ALL, .place = i}, 2, all);
            continue;
        }
        ask(op, &(struct remote_ask){.what = SCAN, .place = i}, 5, scan);
        ask(op, &(struct remote_ask){.what = ENDS, .place = i}, 2, members);
    }
}

/* Headers and covers of wishes [first, first + n), which are of one place. */
static void ask_names(struct remote_op *op, size_t first, size_t n) {
    const struct remote_seek *seek = op->seek;
    const size_t place = seek->wishes[first].place;
    char index[REMOTE_KEY_BYTES], covers[REMOTE_KEY_BYTES], hex[NAMES_AT_ONCE][33];
    const char *argv[NAMES_AT_ONCE + 2] = {"HMGET", index};
    hearth_remote_key_block(&op->link->remote->model, REMOTE_INDEX, seek->places[place].base, index);
    hearth_remote_key_block(&op->link->remote->model, REMOTE_COVERS, seek->places[place].base, covers);
    for (size_t i = 0; i < n; i++) {
        hearth_digest_hex(seek->wishes[first + i].name, hex[i]);
        argv[i + 2] = hex[i];
    }
    ask(op, &(struct remote_ask){HEADERS, place, first, n}, (int)n + 2, argv);
    argv[1] = covers;
    ask(op, &(struct remote_ask){COVERS, place, first, n}, (int)n + 2, argv);
}

static void ask_wishes(struct remote_op *op) {
    struct remote_seek *seek = op->seek;
    while (seek->wished < seek->wish_n) {
        const size_t first = seek->wished;
        size_t n = 0;
        while (first + n < seek->wish_n && n < NAMES_AT_ONCE &&
               seek->wishes[first + n].place == seek->wishes[first].place) {
            n++;
        }
        seek->wished += n;
        ask_names(op, first, n);
    }
}

static void wish(struct remote_seek *seek, size_t place, struct hearth_digest name) {
    for (size_t i = 0; i < seek->wish_n; i++) {
        if (hearth_digest_equal(seek->wishes[i].name, name)) {
            return;
        }
    }
    if (seek->wish_n < WISHES_MAX && HEARTH_BUF_ROOM(seek->wishes, seek->wish_n, seek->wish_cap)) {
        seek->wishes[seek->wish_n++] = (struct remote_wish){place, name}; /* else it is a miss */
    }
}

/* ---- ends ---- */

/* The name that follows from the prompt's tokens for an end. False: this prompt has no such end. */
static bool name_of(const struct hearth_backing_place *place, uint64_t end, struct hearth_digest *name) {
    const uint64_t kind = end >> 40, from = end >> 20 & 0xfffff, to = end & 0xfffff;
    if (kind > HEARTH_RECORD_SNAPSHOT || from > to || to == 0 || to > place->n) {
        return false;
    }
    const struct hearth_record record = {.kind = (enum hearth_record_kind)kind,
                                         .base = place->base,
                                         .base_pos = place->base_pos,
                                         .p0 = place->base_pos + (int32_t)from,
                                         .p1 = place->base_pos + (int32_t)to,
                                         .tokens = (hearth_token *)(uintptr_t)place->tokens};
    *name = hearth_record_name(&record);
    return true;
}

/* ---- replies ---- */

static void see_pairs(struct remote_op *op, size_t place, const redisReply *pairs) {
    for (size_t i = 0; pairs->type == REDIS_REPLY_ARRAY && i + 1 < pairs->elements; i += 2) {
        struct hearth_digest name;
        const bool named = hearth_remote_read_name(pairs->element[i], &name);
        hearth_remote_see(op, op->seek->places[place].base, named ? &name : NULL, pairs->element[i + 1]);
    }
}

static void take_scan(struct remote_op *op, size_t place, const redisReply *reply) {
    if (reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING) {
        op->seek->many[place] = strcmp(reply->element[0]->str, "0") != 0;
        see_pairs(op, place, reply->element[1]);
    }
}

static void take_ends(struct remote_op *op, size_t place, const redisReply *reply) {
    struct remote_seek *seek = op->seek;
    if (!seek->many[place]) {
        return;
    }
    for (size_t i = 0; i < reply->elements; i++) {
        struct hearth_digest name;
        const redisReply *end = reply->element[i];
        if (end->type == REDIS_REPLY_STRING && name_of(&seek->places[place], strtoull(end->str, NULL, 10), &name)) {
            wish(seek, place, name);
        }
    }
    char covers[REMOTE_KEY_BYTES];
    hearth_remote_key_block(&op->link->remote->model, REMOTE_COVERS, seek->places[place].base, covers);
    const char *argv[] = {"HMGET", covers, REMOTE_FIRST};
    ask(op, &(struct remote_ask){.what = FIRST, .place = place}, 3, argv);
}

static void take_headers(struct remote_op *op, const struct remote_ask *asked, const redisReply *reply) {
    for (size_t i = 0; i < asked->n && i < reply->elements; i++) {
        if (reply->element[i]->type != REDIS_REPLY_NIL) {
            hearth_remote_see(op, op->seek->places[asked->place].base, &op->seek->wishes[asked->first + i].name,
                              reply->element[i]);
        }
    }
}

static void take_covers(struct remote_op *op, size_t place, const redisReply *reply) {
    for (size_t i = 0; i < reply->elements; i++) {
        struct hearth_digest name;
        if (hearth_remote_read_name(reply->element[i], &name)) {
            wish(op->seek, place, name);
        }
    }
}

/* Reports as LOST what was known at a place, belongs to the prompt, and was not there. */
static void lose_unseen(struct remote_op *op, const struct hearth_backing_place *place) {
    struct remote *remote = op->link->remote;
    const uint64_t ticket = op->answer.event.ticket;
    (void)pthread_mutex_lock(&remote->lock);
    for (struct hearth_link *link = hearth_table_find(&remote->known_at, place->base), *next; link; link = next) {
        struct remote_known *known = (struct remote_known *)(void *)((char *)link - offsetof(struct remote_known, at));
        struct hearth_digest name = known->entry.link.key, expected;
        next = hearth_table_next(link);
        if (known->seen != ticket &&
            (!place->tokens || (name_of(place, known->end, &expected) && hearth_digest_equal(expected, name)))) {
            hearth_remote_known_remove(remote, known);
            hearth_remote_post_lost(remote, name);
        }
    }
    (void)pthread_mutex_unlock(&remote->lock);
}

/* ---- entry ---- */

/* Starts the next round when everything that was asked is answered, or ends the seek. */
static void go_on(struct remote_op *op) {
    struct remote_seek *seek = op->seek;
    if (op->sent > op->answered || op->lost) {
        return;
    }
    if (seek->wished < seek->wish_n && seek->round++ < ROUNDS_MAX) {
        ask_wishes(op);
        return;
    }
    for (size_t i = 0; i < seek->n; i++) {
        if (!seek->moved[i]) {
            lose_unseen(op, &seek->places[i]);
        }
    }
}

void hearth_remote_seek_begin(struct remote_op *op) {
    ask_round_one(op);
}

void hearth_remote_seek_reply(struct remote_op *op, const redisReply *reply) {
    if (!reply || op->answered > op->seek->ask_n) {
        return;
    }
    const struct remote_ask asked = op->seek->asks[op->answered - 1];
    if (reply->type == REDIS_REPLY_ERROR && hearth_remote_moved(op, reply->str)) { /* only this place */
        op->answer.event.elsewhere = op->seek->moved[asked.place] = true;
        go_on(op);
        return;
    }
    if (reply->type == REDIS_REPLY_ERROR && !op->lost) {
        hearth_remote_refused(op->link->remote, REMOTE_SEEK, reply->str);
    }
    if (reply->type != REDIS_REPLY_ARRAY) { /* unknown what is there */
        op->lost = true;
        return;
    }
    switch (asked.what) {
    case ALL: see_pairs(op, asked.place, reply); break;
    case SCAN: take_scan(op, asked.place, reply); break;
    case ENDS: take_ends(op, asked.place, reply); break;
    case HEADERS: take_headers(op, &asked, reply); break;
    case FIRST:
    case COVERS: take_covers(op, asked.place, reply); break;
    }
    go_on(op);
}
