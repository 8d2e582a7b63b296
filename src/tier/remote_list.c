/* The lister of a store: hiredis' blocking interface on one connection, or for a cluster a lister for each node.
 *
 * Names are those of tier/remote_engine.h. They are read back with care: other programs may use the same store, and
 * what is no name of hearth's is left alone. A failed command ends the connection's use: `trouble` says why. */
#include "tier/remote_list.h"

#include "base/memory.h"
#include "tier/remote_engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_US 10000000
#define SCAN_COUNT "1000"
#define SWEEP_IDLE_S 300 /* a value used more recently may belong to an item that is being written */

struct hearth_remote_list {
    struct hearth_remote_address address;
    redisContext *context;
    redisSSLContext *ssl;
    char trouble[320], where[HEARTH_REMOTE_WHERE_BYTES];
    /* of a cluster, which has no connection of its own */
    struct hearth_remote_hosts hosts;
    const char *ca_file; /* only while the list is being opened */
    struct hearth_remote_list **nodes;
    size_t node_n;
    int16_t slots[HEARTH_REMOTE_SLOTS];
};

/* Where a block is. NULL: no node has it. */
static struct hearth_remote_list *node_of(struct hearth_remote_list *list, struct hearth_digest base) {
    if (!list->nodes) {
        return list;
    }
    const int node = list->slots[hearth_remote_slot(base)];
    if (node < 0) {
        (void)snprintf(list->trouble, sizeof list->trouble, "no node of the cluster has the slot of a block");
        return NULL;
    }
    return list->nodes[node];
}

/* The i-th connection of a store; NULL: there are no more. */
static struct hearth_remote_list *connection(struct hearth_remote_list *list, size_t i) {
    return !list->nodes ? (i == 0 ? list : NULL) : i < list->node_n ? list->nodes[i] : NULL;
}

/* ---- commands ---- */

static void note_trouble(struct hearth_remote_list *list, const redisReply *reply) {
    (void)snprintf(list->trouble, sizeof list->trouble, "%.150s",
                   reply && reply->type == REDIS_REPLY_ERROR ? reply->str
                   : list->context->err                      ? list->context->errstr
                                                             : "it answers something else");
}

/* Sends a command. NULL: it failed. The caller frees the reply. */
static redisReply *ask(struct hearth_remote_list *list, int argc, const char **argv, const size_t *lens) {
    redisReply *reply = redisCommandArgv(list->context, argc, argv, lens);
    if (reply && reply->type != REDIS_REPLY_ERROR) {
        return reply;
    }
    note_trouble(list, reply);
    freeReplyObject(reply);
    return NULL;
}

static bool told(struct hearth_remote_list *list, int argc, const char **argv) {
    redisReply *reply = ask(list, argc, argv, NULL);
    freeReplyObject(reply);
    return reply != NULL;
}

/* The number that a command answers with; -1: none. */
static long long number(struct hearth_remote_list *list, int argc, const char **argv) {
    redisReply *reply = ask(list, argc, argv, NULL);
    const long long n = reply && reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;
    freeReplyObject(reply);
    return n;
}

static void chunk_key(const struct hearth_remote_place *place, size_t chunk, char key[REMOTE_KEY_BYTES]) {
    hearth_remote_key_chunk(&place->model, place->base, place->name, chunk, key);
}

/* ---- names ---- */

/* hearth:MODEL:KIND:{BASE}, and of a chunk :NAME:K. `digest`: the name of a chunk's item, else the base. False: it is
 * no name of hearth's. */
static bool read_key(const redisReply *key, char kind, struct hearth_model_id *model, struct hearth_digest *digest) {
    enum { MODEL = 7, KIND = MODEL + 32 + 1, BASE = KIND + 3, BEHIND = BASE + 32 + 1 };
    char found;
    int end = 0;
    if (key->type != REDIS_REPLY_STRING || strlen(key->str) != key->len ||
        sscanf(key->str, "hearth:%32[0-9a-f]:%c:{%n", model->hex, &found, &end) != 2 || strlen(model->hex) != 32 ||
        found != kind || end != BASE || !hearth_digest_parse(key->str + BASE, digest) || key->str[BEHIND - 1] != '}') {
        return false;
    }
    return kind != 's' ? key->str[BEHIND] == '\0'
                       : key->str[BEHIND] == ':' && hearth_digest_parse(key->str + BEHIND + 1, digest) &&
                             key->str[BEHIND + 33] == ':';
}

/* Calls `each` for every key with the pattern. Stops when it returns false. */
static int scan(struct hearth_remote_list *list, const char *pattern, bool (*each)(void *user, const redisReply *key),
                void *user) {
    char cursor[32] = "0";
    do {
        const char *argv[] = {"SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT};
        redisReply *reply = ask(list, 6, argv, NULL);
        if (!reply) {
            return HEARTH_ERR_IO;
        }
        const bool good = reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 &&
                          reply->element[0]->type == REDIS_REPLY_STRING && reply->element[1]->type == REDIS_REPLY_ARRAY;
        bool goes_on = good;
        (void)snprintf(cursor, sizeof cursor, "%s", good ? reply->element[0]->str : "0");
        for (size_t i = 0; goes_on && i < reply->element[1]->elements; i++) {
            goes_on = each(user, reply->element[1]->element[i]);
        }
        freeReplyObject(reply);
        if (!good) {
            note_trouble(list, NULL);
            return HEARTH_ERR_IO;
        }
        if (!goes_on) {
            break;
        }
    } while (strcmp(cursor, "0") != 0);
    return HEARTH_OK;
}

/* ---- items ---- */

struct remote_walk {
    struct hearth_remote_list *list;
    bool (*visit)(void *user, const struct hearth_remote_listed *listed);
    void *user;
    int err;
};

/* One item of a block's index. */
static bool visit_item(struct remote_walk *walk, struct hearth_remote_listed *listed, const redisReply *field,
                       const redisReply *header) {
    struct hearth_buf padded = {0};
    if (!hearth_remote_read_name(field, &listed->name) || header->type != REDIS_REPLY_STRING ||
        header->len > HEARTH_FORMAT_HEADER_MAX) {
        return true;
    }
    if (!hearth_remote_pad_header(header, &padded)) {
        walk->err = HEARTH_ERR_NOMEM;
        return false;
    }
    listed->header = padded.data;
    listed->header_bytes = header->len;
    listed->padded_bytes = padded.len;
    const bool goes_on = walk->visit(walk->user, listed);
    hearth_buf_finish(&padded);
    return goes_on;
}

static bool visit_index(void *user, const redisReply *key) {
    struct remote_walk *walk = user;
    struct hearth_remote_listed listed = {0};
    if (!read_key(key, REMOTE_INDEX, &listed.model, &listed.base)) {
        return true;
    }
    const char *argv[] = {"HGETALL", key->str};
    redisReply *reply = redisCommandArgv(walk->list->context, 2, argv, NULL);
    if (!reply) {
        note_trouble(walk->list, NULL);
        walk->err = HEARTH_ERR_IO;
        return false;
    }
    bool goes_on = true; /* a key of another type belongs to another program */
    for (size_t i = 0; goes_on && reply->type == REDIS_REPLY_ARRAY && i + 1 < reply->elements; i += 2) {
        goes_on = visit_item(walk, &listed, reply->element[i], reply->element[i + 1]);
    }
    freeReplyObject(reply);
    return goes_on;
}

int hearth_remote_list_walk(struct hearth_remote_list *list,
                            bool (*visit)(void *user, const struct hearth_remote_listed *listed), void *user) {
    struct remote_walk walk = {.visit = visit, .user = user};
    int err = HEARTH_OK;
    for (size_t i = 0; err == HEARTH_OK && walk.err == HEARTH_OK && (walk.list = connection(list, i)); i++) {
        err = scan(walk.list, "hearth:*:i:*", visit_index, &walk);
    }
    return err != HEARTH_OK ? err : walk.err;
}

int64_t hearth_remote_list_idle_s(struct hearth_remote_list *list, const struct hearth_remote_place *place) {
    struct hearth_remote_list *node = node_of(list, place->base);
    const size_t chunks = node ? hearth_remote_chunks(place->payload_bytes) : 0;
    int64_t idle_s = -2;
    for (size_t i = 0; i < chunks; i++) {
        char key[REMOTE_KEY_BYTES];
        chunk_key(place, i, key);
        const char *idle[] = {"OBJECT", "IDLETIME", key}, *there[] = {"EXISTS", key};
        const long long unused_s = number(node, 3, idle);
        if (unused_s < 0 && number(node, 2, there) == 0) {
            return -1;
        }
        idle_s = unused_s < 0 ? idle_s : unused_s; /* < 0: the store's policy counts uses instead of times */
    }
    return idle_s;
}

int hearth_remote_list_read(struct hearth_remote_list *list, const struct hearth_remote_place *place,
                            struct hearth_buf *payload) {
    struct hearth_remote_list *node = node_of(list, place->base);
    int err = !node                                                       ? HEARTH_ERR_IO
              : hearth_buf_reserve(payload, (size_t)place->payload_bytes) ? HEARTH_OK
                                                                          : HEARTH_ERR_NOMEM;
    const size_t chunks = hearth_remote_chunks(place->payload_bytes);
    for (size_t i = 0; i < chunks && err == HEARTH_OK; i++) {
        char key[REMOTE_KEY_BYTES];
        chunk_key(place, i, key);
        const char *argv[] = {"GET", key};
        redisReply *reply = ask(node, 2, argv, NULL);
        err = !reply                                                           ? HEARTH_ERR_IO
              : reply->type != REDIS_REPLY_STRING || reply->len > REMOTE_CHUNK ? HEARTH_ERR_NOT_FOUND
              : !hearth_buf_append(payload, reply->str, reply->len)            ? HEARTH_ERR_NOMEM
                                                                               : HEARTH_OK;
        freeReplyObject(reply);
    }
    return err == HEARTH_OK && payload->len != place->payload_bytes ? HEARTH_ERR_NOT_FOUND : err;
}

int hearth_remote_list_remove(struct hearth_remote_list *list, const struct hearth_remote_place *place) {
    char key[REMOTE_KEY_BYTES], covers[REMOTE_KEY_BYTES], ends[REMOTE_KEY_BYTES], name[33];
    hearth_digest_hex(place->name, name);
    hearth_remote_key_block(&place->model, REMOTE_INDEX, place->base, key);
    hearth_remote_key_block(&place->model, REMOTE_COVERS, place->base, covers);
    hearth_remote_key_block(&place->model, REMOTE_ENDS, place->base, ends);
    const char *header[] = {"HDEL", key, name}, *cover[] = {"HDEL", covers, name}, *left[] = {"EXISTS", key};
    const char *rest[] = {"UNLINK", covers, ends};
    struct hearth_remote_list *node = node_of(list, place->base);
    bool ok = node && told(node, 3, cover) && told(node, 3, header);
    if (ok && number(node, 2, left) == 0) {
        ok = told(node, 3, rest);
    }
    const size_t chunks = hearth_remote_chunks(place->payload_bytes);
    for (size_t i = 0; i < chunks && ok; i++) {
        chunk_key(place, i, key);
        const char *chunk[] = {"UNLINK", key};
        ok = told(node, 2, chunk);
    }
    return ok ? HEARTH_OK : HEARTH_ERR_IO;
}

/* ---- many ---- */

static bool unlink_key(void *user, const redisReply *key) {
    const char *argv[] = {"UNLINK", key->str};
    return key->type != REDIS_REPLY_STRING || told(user, 2, argv);
}

int hearth_remote_list_remove_model(struct hearth_remote_list *list, struct hearth_model_id model) {
    char pattern[64];
    (void)snprintf(pattern, sizeof pattern, "hearth:%s:*", model.hex);
    int err = HEARTH_OK;
    struct hearth_remote_list *node;
    for (size_t i = 0; err == HEARTH_OK && (node = connection(list, i)); i++) {
        node->trouble[0] = '\0';
        err = scan(node, pattern, unlink_key, node);
        err = node->trouble[0] ? HEARTH_ERR_IO : err;
    }
    return err;
}

struct remote_sweep {
    struct hearth_remote_list *list;
    bool (*known)(void *user, struct hearth_model_id model, struct hearth_digest name);
    void *user;
    uint64_t *removed, *removed_bytes;
};

/* Removes a block's ends and covers if its index is gone. */
static bool sweep_block(void *user, const redisReply *key) {
    struct remote_sweep *sweep = user;
    struct hearth_model_id model;
    struct hearth_digest base;
    if (!read_key(key, REMOTE_ENDS, &model, &base) && !read_key(key, REMOTE_COVERS, &model, &base)) {
        return true;
    }
    char index[REMOTE_KEY_BYTES];
    hearth_remote_key_block(&model, REMOTE_INDEX, base, index);
    const char *idle[] = {"OBJECT", "IDLETIME", key->str}, *there[] = {"EXISTS", index};
    if (number(sweep->list, 3, idle) >= SWEEP_IDLE_S && number(sweep->list, 2, there) == 0 &&
        unlink_key(sweep->list, key)) {
        ++*sweep->removed;
    }
    return true;
}

static bool sweep_key(void *user, const redisReply *key) {
    struct remote_sweep *sweep = user;
    struct hearth_model_id model;
    struct hearth_digest name;
    if (!read_key(key, 's', &model, &name) || sweep->known(sweep->user, model, name)) {
        return true;
    }
    const char *idle[] = {"OBJECT", "IDLETIME", key->str}, *length[] = {"STRLEN", key->str};
    const long long bytes = number(sweep->list, 3, idle) >= SWEEP_IDLE_S ? number(sweep->list, 2, length) : -1;
    if (bytes >= 0 && unlink_key(sweep->list, key)) {
        ++*sweep->removed;
        *sweep->removed_bytes += (uint64_t)bytes;
    }
    return true;
}

int hearth_remote_list_sweep(struct hearth_remote_list *list,
                             bool (*known)(void *user, struct hearth_model_id model, struct hearth_digest name),
                             void *user, uint64_t *removed, uint64_t *removed_bytes) {
    struct remote_sweep sweep = {NULL, known, user, removed, removed_bytes};
    int err = HEARTH_OK;
    *removed = *removed_bytes = 0;
    for (size_t i = 0; err == HEARTH_OK && (sweep.list = connection(list, i)); i++) {
        err = scan(sweep.list, "hearth:*:s:*", sweep_key, &sweep);
        err = err == HEARTH_OK ? scan(sweep.list, "hearth:*:[ec]:*", sweep_block, &sweep) : err;
    }
    return err;
}

static uint64_t info_number(const char *info, const char *name) {
    const char *at = strstr(info, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

int hearth_remote_list_memory(struct hearth_remote_list *list, struct hearth_remote_memory *memory) {
    const char *argv[] = {"INFO", "memory"};
    struct hearth_remote_list *node;
    bool limited = true;
    *memory = (struct hearth_remote_memory){0};
    for (size_t i = 0; (node = connection(list, i)) != NULL; i++) {
        redisReply *reply = ask(node, 2, argv, NULL);
        if (!reply || reply->type != REDIS_REPLY_STRING) {
            freeReplyObject(reply);
            return HEARTH_ERR_IO;
        }
        const uint64_t most_bytes = info_number(reply->str, "\nmaxmemory:");
        memory->used_bytes += info_number(reply->str, "\nused_memory:");
        limited = limited && most_bytes > 0;
        memory->most_bytes = limited ? memory->most_bytes + most_bytes : 0;
        const char *policy = strstr(reply->str, "\nmaxmemory_policy:");
        (void)(policy && sscanf(policy, "\nmaxmemory_policy:%31[a-z-]", memory->policy));
        freeReplyObject(reply);
    }
    return HEARTH_OK;
}

static bool is_range(const redisReply *range) {
    return range->type == REDIS_REPLY_ARRAY && range->elements >= 3 && range->element[0]->type == REDIS_REPLY_INTEGER &&
           range->element[1]->type == REDIS_REPLY_INTEGER && range->element[2]->type == REDIS_REPLY_ARRAY &&
           range->element[2]->elements >= 2 && range->element[2]->element[1]->type == REDIS_REPLY_INTEGER;
}

int hearth_remote_list_slots(struct hearth_remote_list *list,
                             void (*take)(void *user, int first, int last, const char *host, int port), void *user) {
    const char *argv[] = {"CLUSTER", "SLOTS"};
    redisReply *reply = ask(list, 2, argv, NULL);
    const bool good = reply && reply->type == REDIS_REPLY_ARRAY;
    for (size_t i = 0; good && i < reply->elements; i++) {
        const redisReply *range = reply->element[i];
        if (is_range(range)) {
            const redisReply *node = range->element[2], *host = node->element[0];
            take(user, (int)range->element[0]->integer, (int)range->element[1]->integer,
                 host->type == REDIS_REPLY_STRING ? host->str : "", (int)node->element[1]->integer);
        }
    }
    freeReplyObject(reply);
    return good ? HEARTH_OK : HEARTH_ERR_IO;
}

/* ---- life ---- */

static int greet(struct hearth_remote_list *list) {
    const struct hearth_remote_address *address = &list->address;
    const char *auth[] = {"AUTH", address->user ? address->user : address->password, address->password};
    char db[16];
    (void)snprintf(db, sizeof db, "%d", address->db);
    const char *select[] = {"SELECT", db}, *ping[] = {"PING"}, *no_touch[] = {"CLIENT", "NO-TOUCH", "ON"};
    if ((address->password && !told(list, address->user ? 3 : 2, auth)) ||
        (address->db != 0 && !told(list, 2, select)) || !told(list, 1, ping)) {
        return HEARTH_ERR_IO;
    }
    (void)told(list, 3, no_touch); /* since Redis 7.2: reading for the list does not count as a use */
    return HEARTH_OK;
}

static redisContext *connect_to(const struct hearth_remote_address *address, const char *host, int64_t timeout_us) {
    const struct timeval timeout = {.tv_sec = timeout_us / 1000000, .tv_usec = timeout_us % 1000000};
    redisOptions options = {.options = REDIS_OPT_SET_SOCK_CLOEXEC | REDIS_OPT_PREFER_IP_UNSPEC,
                            .connect_timeout = &timeout,
                            .command_timeout = &timeout};
    if (address->path) {
        REDIS_OPTIONS_SET_UNIX(&options, address->path);
    } else {
        REDIS_OPTIONS_SET_TCP(&options, host, address->port);
    }
    return redisConnectWithOptions(&options);
}

/* Of several addresses of a name the first that is reached. */
static redisContext *connect_any(const struct hearth_remote_address *address, int64_t timeout_us) {
    char numeric[HEARTH_REMOTE_WHERE_BYTES];
    redisContext *context = NULL;
    const unsigned n = address->path ? 0 : hearth_remote_numeric(address->host, 0, numeric);
    for (unsigned turn = 0; turn < n && (!context || context->err); turn++) {
        if (context) {
            redisFree(context);
        }
        context =
            hearth_remote_numeric(address->host, turn, numeric) > 0 ? connect_to(address, numeric, timeout_us) : NULL;
    }
    return context ? context : connect_to(address, address->host, timeout_us);
}

int hearth_remote_list_open_one(const char *url, const char *ca_file, int64_t timeout_us,
                                struct hearth_remote_list **out, struct hearth_errmsg *msg) {
    struct hearth_remote_list *list = calloc(1, sizeof *list);
    *out = NULL;
    if (!list) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    int err = hearth_remote_address_parse(url, &list->address, msg);
    err = err == HEARTH_OK && list->address.tls ? hearth_remote_tls(&list->address, ca_file, &list->ssl, msg) : err;
    if (err == HEARTH_OK) {
        list->context = connect_any(&list->address, timeout_us > 0 ? timeout_us : TIMEOUT_US);
        if (!list->context) {
            err = hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
        } else if (list->context->err ||
                   (list->ssl && redisInitiateSSLWithContext(list->context, list->ssl) != REDIS_OK)) {
            err = hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", list->address.label,
                              list->context->errstr[0] ? list->context->errstr : strerror(errno));
        } else if (greet(list) != HEARTH_OK) {
            err = hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", list->address.label, list->trouble);
        }
    }
    if (err != HEARTH_OK) {
        hearth_remote_list_close(list);
        return err;
    }
    *out = list;
    return HEARTH_OK;
}

/* ---- a cluster ---- */

static int open_node(struct hearth_remote_list *list, const char *where, struct hearth_remote_list **out,
                     struct hearth_errmsg *msg) {
    char *url = hearth_remote_hosts_url(&list->hosts, where);
    *out = NULL;
    const int err = url ? hearth_remote_list_open_one(url, list->ca_file, 0, out, msg)
                        : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    hearth_memory_wipe(url);
    return err;
}

struct list_opening {
    struct hearth_remote_list *list;
    const char *asked;
    struct hearth_errmsg *msg;
    int err;
};

/* Connects to the node of a range of slots, if that has not happened. */
static void take_range(void *user, int first, int last, const char *host, int port) {
    struct list_opening *opening = user;
    struct hearth_remote_list *list = opening->list, *node = NULL;
    char where[HEARTH_REMOTE_WHERE_BYTES];
    size_t at = 0;
    hearth_remote_where(host, port, opening->asked, where);
    while (at < list->node_n && strcmp(list->nodes[at]->where, where) != 0) {
        at++;
    }
    if (opening->err == HEARTH_OK && at == list->node_n) {
        opening->err = at < HEARTH_REMOTE_NODES_MAX ? open_node(list, where, &node, opening->msg)
                                                    : hearth_fail(opening->msg, HEARTH_ERR_INVALID, "too many nodes");
        if (opening->err == HEARTH_OK) {
            memcpy(node->where, where, sizeof where);
            list->nodes[list->node_n++] = node;
        }
    }
    for (int slot = first; opening->err == HEARTH_OK && slot <= last && slot >= 0 && slot < HEARTH_REMOTE_SLOTS;
         slot++) {
        list->slots[slot] = (int16_t)at;
    }
}

/* Asks one host for the nodes. */
static int open_nodes(struct hearth_remote_list *list, const char *host, struct hearth_errmsg *msg) {
    struct hearth_remote_list *asked = NULL;
    char name[HEARTH_REMOTE_WHERE_BYTES];
    (void)snprintf(name, sizeof name, "%.*s", (int)(strrchr(host, ':') - host), host);
    struct list_opening opening = {list, name, msg, open_node(list, host, &asked, msg)};
    if (opening.err == HEARTH_OK && hearth_remote_list_slots(asked, take_range, &opening) != HEARTH_OK) {
        opening.err = hearth_fail(msg, HEARTH_ERR_IO, "%s: %s", asked->address.label, asked->trouble);
    } else if (opening.err == HEARTH_OK && list->node_n == 0) {
        opening.err = hearth_fail(msg, HEARTH_ERR_IO, "%s: it knows of no node with slots", asked->address.label);
    }
    hearth_remote_list_close(asked);
    return opening.err;
}

static int open_cluster(const char *url, const char *ca_file, struct hearth_remote_list **out,
                        struct hearth_errmsg *msg) {
    struct hearth_remote_list *list = calloc(1, sizeof *list);
    int err =
        list ? hearth_remote_hosts_parse(url, &list->hosts, msg) : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    *out = NULL;
    if (err == HEARTH_OK) {
        list->ca_file = ca_file;
        list->nodes = calloc(HEARTH_REMOTE_NODES_MAX, sizeof(struct hearth_remote_list *));
        memset(list->slots, 0xff, sizeof list->slots);
        (void)snprintf(list->address.label, sizeof list->address.label, "%.*s://%s,…",
                       (int)strcspn(list->hosts.prefix, ":"), list->hosts.prefix, list->hosts.hosts[0]);
        err = HEARTH_ERR_IO;
    }
    for (size_t i = 0; err == HEARTH_ERR_IO && list->nodes && list->node_n == 0 && i < list->hosts.n; i++) {
        err = open_nodes(list, list->hosts.hosts[i], msg);
    }
    if (err != HEARTH_OK) {
        hearth_remote_list_close(list);
        return err;
    }
    *out = list;
    return HEARTH_OK;
}

static void skip_range(void *user, int first, int last, const char *host, int port) {
    (void)user, (void)first, (void)last, (void)host, (void)port;
}

bool hearth_remote_list_is_node(struct hearth_remote_list *list) {
    return hearth_remote_list_slots(list, skip_range, NULL) == HEARTH_OK;
}

int hearth_remote_list_open(const char *url, const char *ca_file, struct hearth_remote_list **out,
                            struct hearth_errmsg *msg) {
    if (hearth_remote_hosts_several(url)) {
        return open_cluster(url, ca_file, out, msg);
    }
    const int err = hearth_remote_list_open_one(url, ca_file, 0, out, msg);
    if (err != HEARTH_OK || !hearth_remote_hosts_seed(url) || !hearth_remote_list_is_node(*out)) {
        return err;
    }
    hearth_remote_list_close(*out);
    return open_cluster(url, ca_file, out, msg);
}

void hearth_remote_list_close(struct hearth_remote_list *list) {
    if (!list) {
        return;
    }
    for (size_t i = 0; i < list->node_n; i++) {
        hearth_remote_list_close(list->nodes[i]);
    }
    free(list->nodes);
    hearth_remote_hosts_finish(&list->hosts);
    if (list->context) {
        redisFree(list->context);
    }
    if (list->ssl) {
        redisFreeSSLContext(list->ssl);
    }
    hearth_remote_address_finish(&list->address);
    free(list);
}

const char *hearth_remote_list_label(const struct hearth_remote_list *list) {
    return list->address.label;
}

const char *hearth_remote_list_trouble(struct hearth_remote_list *list) {
    for (size_t i = 0; i < list->node_n; i++) {
        if (list->nodes[i]->trouble[0]) {
            (void)snprintf(list->trouble, sizeof list->trouble, "%s: %.150s", list->nodes[i]->address.label,
                           list->nodes[i]->trouble);
            break;
        }
    }
    return list->trouble;
}
