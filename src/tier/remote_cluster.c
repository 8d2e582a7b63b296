/* A cluster of Redis or Valkey: a remote tier for each of its nodes, and a map that says which one has a block.
 *
 * All values of a block have one hash tag (tier/remote_engine.h), so they are on one node, and blocks are spread over
 * all. A thread of its own asks any node for the map (CLUSTER SLOTS): at the start, when a node says that a value is
 * elsewhere or is lost, every second while a node that has slots fails, and now and then.
 *
 *     seek              the places of each node in one seek of that node; SOUGHT when all have answered, in the order
 *                       of the calls
 *     put               the node of the block
 *     get, remove, …    the node that told of the item, or was given it
 *
 * A node that says where else a value is (MOVED, ASK) changes the map at once, and what was asked goes on there: the
 * places of a seek from here, other operations from node to node (remote_link.c), so often at most. A node that is not
 * known yet is added by the thread; what was asked of it meanwhile is a miss, and what was to be written is dropped.
 *
 * Invariants: nodes are added and never removed: one without slots is left alone. The map and the list of nodes change
 * under `lock`, nodes only by the thread; everything else is the engine's. No operation is passed on once `stop` is
 * set. */
#include "tier/remote.h"

#include "tier/events.h"
#include "tier/remote_list.h"

#include "base/clock.h"
#include "base/health.h"
#include "base/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS HEARTH_REMOTE_SLOTS
#define NODES_MAX HEARTH_REMOTE_NODES_MAX

struct cluster_item {
    struct hearth_link link; /* first; its key is the name */
    int node;
};

struct cluster_node {
    char where[HEARTH_REMOTE_WHERE_BYTES];
    struct hearth_backing *tier;
};

/* Which node was asked for a place. */
struct cluster_asked {
    int node;
    uint64_t ticket; /* of that node; 0: it has answered, or was not asked */
};

/* A seek that is under way. */
struct cluster_seek {
    STAILQ_ENTRY(cluster_seek) next;
    uint64_t ticket;
    struct hearth_backing_place *places;
    struct cluster_asked *asked; /* of each place */
    size_t n;
    int hops;
};

struct cluster {
    struct hearth_backing backing; /* first */
    struct hearth_remote_params params;
    struct hearth_remote_cluster calls; /* of the nodes */
    char *key_file, *ca_file;
    struct hearth_remote_hosts seeds;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t came, told;
    struct cluster_node nodes[NODES_MAX];
    size_t node_n;
    int16_t slots[SLOTS];                    /* -1: no node is known */
    int16_t asks[SLOTS];                     /* the node that a slot is on its way to; -1: none was told of */
    char told_of[HEARTH_REMOTE_WHERE_BYTES]; /* a node that is to be added; "": none */
    char why[160];                           /* why no map was had; "": one was */
    bool stop, stale, looked;
    struct hearth_news news;
    /* the engine's */
    bool scanned; /* SCANNED was delivered: a cluster reports nothing by itself */
    struct hearth_table items;
    STAILQ_HEAD(, cluster_seek) seeks;
    uint64_t ticket;
};

static struct cluster *cluster_of(struct hearth_backing *backing) {
    return (struct cluster *)backing;
}

/* ---- slots ---- */

/* The node that has a block; -1: unknown. `again`: the node to ask in a second round. */
static int node_of(struct cluster *cluster, struct hearth_digest base, bool again) {
    const int slot = hearth_remote_slot(base);
    (void)pthread_mutex_lock(&cluster->lock);
    const int node = again && cluster->asks[slot] >= 0 ? cluster->asks[slot] : cluster->slots[slot];
    (void)pthread_mutex_unlock(&cluster->lock);
    return node;
}

static size_t node_count(struct cluster *cluster) {
    (void)pthread_mutex_lock(&cluster->lock);
    const size_t n = cluster->node_n;
    (void)pthread_mutex_unlock(&cluster->lock);
    return n;
}

/* ---- the map ---- */

static int find_node(const struct cluster *cluster, const char *where) {
    for (size_t i = 0; i < cluster->node_n; i++) {
        if (strcmp(cluster->nodes[i].where, where) == 0) {
            return (int)i;
        }
    }
    return -1;
}

static void on_changed(void *user, const struct hearth_remote_moved *moved, const char *asked) {
    struct cluster *cluster = user;
    char where[HEARTH_REMOTE_WHERE_BYTES];
    (void)pthread_mutex_lock(&cluster->lock);
    if (moved) {
        hearth_remote_where(moved->host, moved->port, asked, where);
        const int node = find_node(cluster, where);
        if (node < 0) {
            memcpy(cluster->told_of, where, sizeof where);
        } else if (moved->asks) {
            cluster->asks[moved->slot] = (int16_t)node;
        } else {
            cluster->slots[moved->slot] = (int16_t)node;
            cluster->asks[moved->slot] = -1;
        }
    }
    cluster->stale = true;
    (void)pthread_cond_signal(&cluster->told);
    (void)pthread_mutex_unlock(&cluster->lock);
}

static bool on_asks(void *user, struct hearth_digest base) {
    struct cluster *cluster = user;
    const int slot = hearth_remote_slot(base);
    (void)pthread_mutex_lock(&cluster->lock);
    const bool asks = cluster->asks[slot] >= 0;
    (void)pthread_mutex_unlock(&cluster->lock);
    return asks;
}

static bool on_pass(void *user, struct remote_op *op, struct hearth_digest base, const struct hearth_backing *from) {
    struct cluster *cluster = user;
    const int slot = hearth_remote_slot(base);
    (void)pthread_mutex_lock(&cluster->lock);
    const int node = cluster->asks[slot] >= 0 ? cluster->asks[slot] : cluster->slots[slot];
    const bool passes = !cluster->stop && node >= 0 && cluster->nodes[node].tier != from;
    if (passes) {
        hearth_remote_take_over(cluster->nodes[node].tier, op);
    }
    (void)pthread_mutex_unlock(&cluster->lock);
    return passes;
}

/* The node at an address, added if it is new; -1: that failed. */
static int node_at(struct cluster *cluster, const char *where, struct hearth_errmsg *msg) {
    const int known = find_node(cluster, where); /* only this thread adds to them */
    if (known >= 0) {
        return known;
    }
    struct hearth_backing *tier = NULL;
    char *url = hearth_remote_hosts_url(&cluster->seeds, where);
    struct hearth_remote_params params = cluster->params;
    params.url = url;
    if (!url || cluster->node_n == NODES_MAX || hearth_remote_create(&params, &tier, msg) != HEARTH_OK) {
        free(url);
        return -1;
    }
    free(url);
    tier->ops->set_wake(tier, hearth_news_come, &cluster->news);
    (void)pthread_mutex_lock(&cluster->lock);
    struct cluster_node *node = &cluster->nodes[cluster->node_n];
    (void)snprintf(node->where, sizeof node->where, "%s", where);
    node->tier = tier;
    const int at = (int)cluster->node_n++;
    (void)pthread_mutex_unlock(&cluster->lock);
    return at;
}

struct cluster_look {
    struct cluster *cluster;
    const char *asked; /* the address that was asked, since a node may not know its own */
    int16_t slots[SLOTS];
    bool any;
};

static void take_range(void *user, int first, int last, const char *host, int port) {
    struct cluster_look *look = user;
    struct hearth_errmsg msg;
    char where[HEARTH_REMOTE_WHERE_BYTES];
    const char *colon = strrchr(look->asked, ':');
    char asked[HEARTH_REMOTE_WHERE_BYTES];
    (void)snprintf(asked, sizeof asked, "%.*s", colon ? (int)(colon - look->asked) : 0, look->asked);
    hearth_remote_where(host, port, asked, where);
    const int node = node_at(look->cluster, where, &msg);
    for (int slot = first; slot <= last && slot >= 0 && slot < SLOTS; slot++) {
        look->slots[slot] = (int16_t)node;
        look->any = true;
    }
}

/* Asks one node for the map. */
static bool look_at(struct cluster *cluster, const char *where, struct cluster_look *look) {
    struct hearth_remote_list *list = NULL;
    struct hearth_errmsg msg;
    char *url = hearth_remote_hosts_url(&cluster->seeds, where);
    look->cluster = cluster;
    look->asked = where;
    look->any = false;
    memset(look->slots, 0xff, sizeof look->slots);
    const bool there = url && hearth_remote_list_open_one(url, cluster->ca_file, 0, &list, &msg) == HEARTH_OK;
    const bool told = there && hearth_remote_list_slots(list, take_range, look) == HEARTH_OK, good = told && look->any;
    (void)pthread_mutex_lock(&cluster->lock);
    (void)snprintf(cluster->why, sizeof cluster->why, "%.150s",
                   good                                                   ? ""
                   : !url                                                 ? "out of memory"
                   : !there                                               ? msg.text
                   : told                                                 ? "no node has slots yet"
                   : strstr(hearth_remote_list_trouble(list), "disabled") ? "it is no cluster (give one address)"
                                                                          : hearth_remote_list_trouble(list));
    (void)pthread_mutex_unlock(&cluster->lock);
    hearth_remote_list_close(list);
    free(url);
    return good;
}

static bool look(struct cluster *cluster) {
    struct cluster_look *look = malloc(sizeof *look);
    char told_of[HEARTH_REMOTE_WHERE_BYTES];
    struct hearth_errmsg msg;
    (void)pthread_mutex_lock(&cluster->lock);
    memcpy(told_of, cluster->told_of, sizeof told_of);
    cluster->told_of[0] = '\0';
    (void)pthread_mutex_unlock(&cluster->lock);
    if (told_of[0]) {
        (void)node_at(cluster, told_of, &msg);
    }
    bool good = false;
    for (size_t i = 0; look && !good && i < cluster->node_n; i++) {
        char where[sizeof cluster->nodes[i].where];
        memcpy(where, cluster->nodes[i].where, sizeof where);
        good = look_at(cluster, where, look);
    }
    for (size_t i = 0; look && !good && i < cluster->seeds.n; i++) {
        good = look_at(cluster, cluster->seeds.hosts[i], look);
    }
    (void)pthread_mutex_lock(&cluster->lock);
    if (good) {
        memcpy(cluster->slots, look->slots, sizeof cluster->slots);
    }
    cluster->looked = true;
    (void)pthread_cond_broadcast(&cluster->came);
    (void)pthread_mutex_unlock(&cluster->lock);
    free(look);
    return good;
}

/* Adds up the figures of the nodes that have slots. */
static void add_up(struct cluster *cluster, struct hearth_backing_stats *sum) {
    bool has[NODES_MAX] = {false};
    struct hearth_backing *tiers[NODES_MAX];
    (void)pthread_mutex_lock(&cluster->lock);
    const size_t n = cluster->node_n;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        tiers[i] = cluster->nodes[i].tier;
    }
    for (size_t i = 0; i < SLOTS; i++) {
        if (cluster->slots[i] >= 0) {
            has[cluster->slots[i]] = any = true;
        }
    }
    *sum = (struct hearth_backing_stats){.scanned = true, .failing = !any};
    (void)snprintf(sum->trouble, sizeof sum->trouble, "%s", any ? "" : cluster->why);
    (void)pthread_mutex_unlock(&cluster->lock);
    for (size_t i = 0; i < n; i++) {
        struct hearth_backing_stats stats;
        tiers[i]->ops->stats(tiers[i], &stats);
#define X(name, kind, help) sum->name += stats.name;
        HEARTH_BACKING_STATS_TABLE(X)
#undef X
        if (has[i] && stats.failing && !sum->failing) {
            sum->failing = true;
            (void)snprintf(sum->trouble, sizeof sum->trouble, "%.60s: %.90s", cluster->nodes[i].where, stats.trouble);
        }
    }
}

static void *run(void *user) {
    struct cluster *cluster = user;
    bool stop = false;
    while (!stop) {
        struct hearth_backing_stats sum;
        const bool good = look(cluster);
        add_up(cluster, &sum);
        if (sum.failing || !good) {
            hearth_health_raise(
                HEARTH_HEALTH_KV_REMOTE,
                "remote: a node of the cluster: %s; this box computes what it would have had from there",
                sum.failing ? sum.trouble : "none of them is reached");
        } else {
            hearth_health_clear(HEARTH_HEALTH_KV_REMOTE);
        }
        const bool calm = good && !sum.failing;
        const int64_t now_us = hearth_clock_us(), retry_us = hearth_backing_backoff_us(0);
        const int64_t until_us = now_us + (calm ? HEARTH_BACKING_WAIT_US : retry_us), soon_us = now_us + retry_us / 10;
        (void)pthread_mutex_lock(&cluster->lock);
        while (!cluster->stop && !cluster->stale && hearth_clock_cond_wait(&cluster->told, &cluster->lock, until_us)) {
            continue;
        }
        while (!cluster->stop && hearth_clock_cond_wait(&cluster->told, &cluster->lock, soon_us)) {
            continue; /* one look serves all requests that came meanwhile */
        }
        cluster->stale = false;
        stop = cluster->stop;
        (void)pthread_mutex_unlock(&cluster->lock);
    }
    return NULL;
}

/* ---- items ---- */

static struct cluster_item *find(const struct cluster *cluster, struct hearth_digest name) {
    return (struct cluster_item *)(void *)hearth_table_find(&cluster->items, name);
}

static void note(struct cluster *cluster, struct hearth_digest name, int node) {
    struct cluster_item *item = find(cluster, name);
    if (!item) {
        item = (struct cluster_item *)(void *)hearth_table_make(&cluster->items, name, sizeof *item);
    }
    if (item) { /* else it is a miss */
        item->node = node;
    }
}

/* The tier of the node that has an item; any tier answers for an unknown one. */
static struct hearth_backing *tier_of(struct cluster *cluster, struct hearth_digest name) {
    const struct cluster_item *item = find(cluster, name);
    return cluster->nodes[item ? item->node : 0].tier;
}

/* ---- calls ---- */

static bool cluster_put(struct hearth_backing *backing, const struct hearth_record *record, struct hearth_blob *blob,
                        const struct hearth_digest *replaces) {
    struct cluster *cluster = cluster_of(backing);
    const int node = node_of(cluster, record->base, false);
    if (node < 0) {
        return false;
    }
    struct hearth_backing *tier = cluster->nodes[node].tier;
    if (!tier->ops->put(tier, record, blob, replaces)) {
        return false;
    }
    note(cluster, record->name, node);
    return true;
}

static bool cluster_get(struct hearth_backing *backing, struct hearth_digest name) {
    struct hearth_backing *tier = tier_of(cluster_of(backing), name);
    return tier->ops->get(tier, name);
}

static void free_seek(struct cluster_seek *seek) {
    if (seek) {
        free(seek->places);
        free(seek->asked);
        free(seek);
    }
}

/* Sends a node the places that it has to be asked for. */
static void ask_node(struct cluster *cluster, struct cluster_seek *seek, int node, struct hearth_backing_place *room) {
    struct hearth_backing *tier = cluster->nodes[node].tier;
    size_t count = 0;
    for (size_t i = 0; i < seek->n; i++) {
        if (seek->asked[i].node == node && seek->asked[i].ticket == 0) {
            room[count++] = seek->places[i];
        }
    }
    const uint64_t ticket = count > 0 ? tier->ops->seek(tier, room, count) : 0;
    for (size_t i = 0; i < seek->n; i++) {
        if (seek->asked[i].node == node && seek->asked[i].ticket == 0) {
            seek->asked[i] = (struct cluster_asked){.node = ticket ? node : -1, .ticket = ticket};
        }
    }
}

/* Asks every node for its places. False: none could be asked. */
static bool ask_nodes(struct cluster *cluster, struct cluster_seek *seek) {
    struct hearth_backing_place *room = malloc(seek->n * sizeof *room);
    bool asked = false;
    for (size_t node = 0; room && node < node_count(cluster); node++) {
        ask_node(cluster, seek, (int)node, room);
    }
    for (size_t i = 0; i < seek->n; i++) {
        asked = asked || seek->asked[i].ticket != 0;
    }
    free(room);
    return asked;
}

static uint64_t cluster_seek(struct hearth_backing *backing, const struct hearth_backing_place *places, size_t n) {
    struct cluster *cluster = cluster_of(backing);
    struct cluster_seek *seek = calloc(1, sizeof *seek);
    if (seek) {
        seek->places = hearth_backing_places_copy(places, n);
        seek->asked = calloc(n, sizeof *seek->asked);
        seek->n = n;
    }
    for (size_t i = 0; seek && seek->asked && i < n; i++) {
        seek->asked[i].node = node_of(cluster, places[i].base, false);
    }
    if (!seek || !seek->places || !seek->asked || !ask_nodes(cluster, seek)) {
        free_seek(seek);
        return 0;
    }
    seek->ticket = ++cluster->ticket;
    STAILQ_INSERT_TAIL(&cluster->seeks, seek, next);
    return seek->ticket;
}

/* Handles a node's answer. Places that are at another node are asked for there. */
static void hear(struct cluster *cluster, int node, const struct hearth_backing_event *event) {
    struct cluster_seek *seek;
    STAILQ_FOREACH(seek, &cluster->seeks, next) {
        const bool follows = event->elsewhere && seek->hops < HEARTH_REMOTE_HOPS_MAX;
        bool again = false;
        for (size_t i = 0; i < seek->n; i++) {
            if (seek->asked[i].node == node && seek->asked[i].ticket == event->ticket) {
                const int next = follows ? node_of(cluster, seek->places[i].base, true) : -1;
                seek->asked[i] = (struct cluster_asked){.node = next == node ? -1 : next};
                again = again || seek->asked[i].node >= 0;
            }
        }
        if (again) {
            seek->hops++;
            (void)ask_nodes(cluster, seek);
        }
    }
}

static void cluster_touch(struct hearth_backing *backing, const struct hearth_backing_touch *touches, size_t n) {
    struct cluster *cluster = cluster_of(backing);
    for (size_t i = 0; i < n; i++) {
        if (find(cluster, touches[i].name)) {
            struct hearth_backing *tier = tier_of(cluster, touches[i].name);
            tier->ops->touch(tier, &touches[i], 1);
        }
    }
}

static void cluster_reject(struct hearth_backing *backing, struct hearth_digest name, const char *why) {
    struct hearth_backing *tier = tier_of(cluster_of(backing), name);
    tier->ops->reject(tier, name, why);
}

static bool cluster_remove(struct hearth_backing *backing, struct hearth_digest name, enum hearth_record_kind kind) {
    struct hearth_backing *tier = tier_of(cluster_of(backing), name);
    return tier->ops->remove(tier, name, kind);
}

/* ---- events ---- */

/* Notes at which node an item was written or read. */
static void move(struct cluster *cluster, const struct hearth_backing_event *event, int node) {
    struct cluster_item *item = find(cluster, event->name);
    if (item && event->err == HEARTH_OK) {
        item->node = node;
    }
}

/* Whether the event goes on to the cache. */
static bool passes(struct cluster *cluster, size_t node, const struct hearth_backing_event *event) {
    switch (event->type) {
    case HEARTH_BACKING_FOUND: note(cluster, event->name, (int)node); return true;
    case HEARTH_BACKING_LOST:
    case HEARTH_BACKING_DROPPED:
    case HEARTH_BACKING_REMOVED: (void)hearth_table_take_name(&cluster->items, event->name); return true;
    case HEARTH_BACKING_SCANNED: return false;
    case HEARTH_BACKING_SOUGHT: hear(cluster, (int)node, event); return false;
    default: move(cluster, event, (int)node); return true;
    }
}

/* Takes the event of the oldest seek once that has ended. */
static bool take_sought(struct cluster *cluster, struct hearth_backing_event *event) {
    struct cluster_seek *seek = STAILQ_FIRST(&cluster->seeks);
    for (size_t i = 0; seek && i < seek->n; i++) {
        if (seek->asked[i].ticket != 0) {
            return false;
        }
    }
    if (!seek) {
        return false;
    }
    *event = (struct hearth_backing_event){.type = HEARTH_BACKING_SOUGHT, .ticket = seek->ticket};
    STAILQ_REMOVE_HEAD(&cluster->seeks, next);
    free_seek(seek);
    return true;
}

static bool cluster_poll(struct hearth_backing *backing, struct hearth_backing_event *event) {
    struct cluster *cluster = cluster_of(backing);
    hearth_news_clear(&cluster->news);
    if (!cluster->scanned) {
        cluster->scanned = true;
        *event = (struct hearth_backing_event){.type = HEARTH_BACKING_SCANNED};
        hearth_news_keep(&cluster->news);
        return true;
    }
    const size_t n = node_count(cluster);
    for (size_t i = 0; i < n; i++) {
        struct hearth_backing *tier = cluster->nodes[i].tier;
        while (tier->ops->poll(tier, event)) {
            if (passes(cluster, i, event)) {
                hearth_news_keep(&cluster->news);
                return true;
            }
            hearth_backing_event_finish(event);
        }
    }
    const bool took = take_sought(cluster, event);
    if (took) {
        hearth_news_keep(&cluster->news);
    }
    return took;
}

static bool cluster_wait(struct hearth_backing *backing, int64_t timeout_us) {
    return hearth_news_wait(&cluster_of(backing)->news, timeout_us);
}

static void cluster_set_wake(struct hearth_backing *backing, void (*wake)(void *user), void *user) {
    hearth_news_set_wake(&cluster_of(backing)->news, wake, user);
}

static void cluster_stats(struct hearth_backing *backing, struct hearth_backing_stats *stats) {
    add_up(cluster_of(backing), stats);
}

/* ---- life ---- */

static void cluster_destroy(struct hearth_backing *backing) {
    struct cluster *cluster = cluster_of(backing);
    if (cluster->has_thread) {
        (void)pthread_mutex_lock(&cluster->lock);
        cluster->stop = true;
        (void)pthread_cond_signal(&cluster->told);
        (void)pthread_mutex_unlock(&cluster->lock);
        (void)pthread_join(cluster->thread, NULL);
    }
    for (size_t i = 0; i < cluster->node_n; i++) {
        struct hearth_backing *tier = cluster->nodes[i].tier;
        tier->ops->set_wake(tier, NULL, NULL);
        tier->ops->destroy(tier);
    }
    hearth_health_clear(HEARTH_HEALTH_KV_REMOTE);
    hearth_table_finish_names(&cluster->items);
    for (struct cluster_seek *seek; (seek = STAILQ_FIRST(&cluster->seeks)) != NULL;) {
        STAILQ_REMOVE_HEAD(&cluster->seeks, next);
        free_seek(seek);
    }
    hearth_remote_hosts_finish(&cluster->seeds);
    free(cluster->key_file);
    free(cluster->ca_file);
    hearth_news_finish(&cluster->news);
    (void)pthread_cond_destroy(&cluster->came);
    (void)pthread_cond_destroy(&cluster->told);
    (void)pthread_mutex_destroy(&cluster->lock);
    free(cluster);
}

static const struct hearth_backing_ops OPS = {
    .destroy = cluster_destroy,
    .put = cluster_put,
    .get = cluster_get,
    .seek = cluster_seek,
    .touch = cluster_touch,
    .reject = cluster_reject,
    .remove = cluster_remove,
    .poll = cluster_poll,
    .wait = cluster_wait,
    .stats = cluster_stats,
    .set_wake = cluster_set_wake,
};

int hearth_remote_cluster_ports(const char *url, uint16_t *ports, size_t most, size_t *n, struct hearth_errmsg *msg) {
    struct hearth_remote_hosts hosts;
    const int err = hearth_remote_hosts_parse(url, &hosts, msg);
    for (size_t i = 0; err == HEARTH_OK && i < hosts.n; i++) {
        const uint16_t port = (uint16_t)strtoul(strrchr(hosts.hosts[i], ':') + 1, NULL, 10);
        size_t same = 0;
        while (same < *n && ports[same] != port) {
            same++;
        }
        if (same == *n && *n < most) {
            ports[(*n)++] = port;
        }
    }
    if (err == HEARTH_OK) {
        hearth_remote_hosts_finish(&hosts);
    }
    return err;
}

bool hearth_remote_cluster_at(const struct hearth_remote_params *params) {
    struct hearth_remote_list *list = NULL;
    struct hearth_errmsg msg;
    if (hearth_remote_hosts_several(params->url) || !hearth_remote_hosts_seed(params->url)) {
        return hearth_remote_hosts_several(params->url);
    }
    const bool node =
        hearth_remote_list_open_one(params->url, params->ca_file, params->timeout_us, &list, &msg) == HEARTH_OK &&
        hearth_remote_list_is_node(list);
    hearth_remote_list_close(list);
    return node;
}

static int start(struct cluster *cluster, struct hearth_errmsg *msg) {
    if (node_at(cluster, cluster->seeds.hosts[0], msg) < 0) {
        return HEARTH_ERR_INVALID; /* the key file, the certificates: msg says it */
    }
    cluster->backing.key = cluster->nodes[0].tier->key;
    cluster->has_thread = pthread_create(&cluster->thread, NULL, run, cluster) == 0;
    if (!cluster->has_thread) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "no thread can be started");
    }
    const int64_t until_us = hearth_clock_us() + cluster->params.timeout_us;
    (void)pthread_mutex_lock(&cluster->lock);
    while (!cluster->looked && hearth_clock_cond_wait(&cluster->came, &cluster->lock, until_us)) {
        continue; /* a node that cannot be reached is tried again by itself */
    }
    (void)pthread_mutex_unlock(&cluster->lock);
    return HEARTH_OK;
}

int hearth_remote_cluster_create(const struct hearth_remote_params *params, struct hearth_backing **out,
                                 struct hearth_errmsg *msg) {
    struct cluster *cluster = calloc(1, sizeof *cluster);
    *out = NULL;
    if (!cluster) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    cluster->backing = (struct hearth_backing){.ops = &OPS, .name = "remote"};
    cluster->params = *params;
    cluster->key_file = params->key_file ? strdup(params->key_file) : NULL;
    cluster->ca_file = params->ca_file ? strdup(params->ca_file) : NULL;
    cluster->params.key_file = cluster->key_file;
    cluster->params.ca_file = cluster->ca_file;
    cluster->calls = (struct hearth_remote_cluster){cluster, on_changed, on_asks, on_pass};
    cluster->params.cluster = &cluster->calls;
    STAILQ_INIT(&cluster->seeks);
    hearth_news_init(&cluster->news);
    hearth_news_come(&cluster->news); /* SCANNED */
    memset(cluster->slots, 0xff, sizeof cluster->slots);
    memset(cluster->asks, 0xff, sizeof cluster->asks);
    (void)pthread_mutex_init(&cluster->lock, NULL);
    hearth_clock_cond_init(&cluster->came);
    hearth_clock_cond_init(&cluster->told);
    int err = (params->key_file && !cluster->key_file) || (params->ca_file && !cluster->ca_file)
                  ? hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory")
                  : hearth_remote_hosts_parse(params->url, &cluster->seeds, msg);
    err = err == HEARTH_OK ? start(cluster, msg) : err;
    if (err != HEARTH_OK) {
        cluster_destroy(&cluster->backing);
        return err;
    }
    *out = &cluster->backing;
    return HEARTH_OK;
}
