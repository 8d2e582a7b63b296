/* A queue between the cache and a thread that owns the sockets.
 *
 * The thread takes what has come, packs it into one message, publishes it, and remembers it for those that missed it.
 * A subscriber that sees a gap in the numbers asks the replay socket for messages from a number on; they come in order,
 * and one of number -1 ends them.
 *
 * Invariants: messages are numbered from 0 without gaps. When the queue is full it is emptied, and the next event says
 * that all blocks are cleared: a router then knows too little, never too much. */
#include "publish/kv_events.h"

#include "base/clock.h"
#include "base/log.h"

#include <msgpack.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define QUEUE_MAX 16384     /* events */
#define BATCH_MAX 256       /* events of a message */
#define REMEMBERED_MAX 8192 /* messages */
#define REMEMBERED_BYTES ((size_t)64 << 20)
#define LINGER_MS 1000 /* at the end, for what is not sent yet */
#define REPLAY_MAX 16  /* replay requests that are answered before new events are handled */
#define REQUEST_BYTES 1024

enum kv_event_kind { STORED, REMOVED, CLEARED };

struct kv_event {
    struct kv_event *next;
    enum kv_event_kind kind;
    bool first;
    uint64_t block, parent;
    hearth_token tokens[]; /* of STORED */
};

struct kv_message {
    struct kv_message *next;
    uint64_t number;
    msgpack_sbuffer bytes;
    bool broken; /* out of memory */
};

struct hearth_kv_events {
    struct hearth_cache_observer observer;
    struct hearth_kv_events_params params;
    char *topic;
    void *context, *publish, *replay; /* of the thread, once it runs */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of what follows, up to the thread's own */
    pthread_cond_t came;
    struct kv_event *first, **end;
    size_t queued;
    bool overflowed, stop;
    struct hearth_kv_events_stats stats;
    /* the thread's own */
    struct kv_message *oldest, **newest;
    size_t remembered, remembered_bytes;
    uint64_t number;
};

/* ---- the queue ---- */

static void empty_queue(struct hearth_kv_events *events) {
    while (events->first) {
        struct kv_event *event = events->first;
        events->first = event->next;
        events->stats.dropped++;
        free(event);
    }
    events->end = &events->first;
    events->queued = 0;
}

/* Adds an event to the queue; NULL: it could not be allocated. */
static void add(struct hearth_kv_events *events, struct kv_event *event) {
    (void)pthread_mutex_lock(&events->lock);
    if (!event || events->queued == QUEUE_MAX) {
        empty_queue(events);
        events->overflowed = true;
        events->stats.dropped++;
        free(event);
    } else {
        events->stats.stored += event->kind == STORED;
        events->stats.removed += event->kind == REMOVED;
        *events->end = event;
        events->end = &event->next;
        events->queued++;
    }
    (void)pthread_cond_signal(&events->came);
    (void)pthread_mutex_unlock(&events->lock);
}

static void on_stored(void *user, struct hearth_digest block, struct hearth_digest parent, bool first,
                      const hearth_token *tokens) {
    struct hearth_kv_events *events = user;
    const size_t bytes = (size_t)events->params.page_tokens * sizeof *tokens;
    struct kv_event *event = malloc(sizeof *event + bytes);
    if (event) {
        *event = (struct kv_event){.kind = STORED, .first = first, .block = block.lo, .parent = parent.lo};
        memcpy(event->tokens, tokens, bytes);
    }
    add(events, event);
}

static void on_removed(void *user, struct hearth_digest block) {
    struct kv_event *event = malloc(sizeof *event);
    if (event) {
        *event = (struct kv_event){.kind = REMOVED, .block = block.lo};
    }
    add(user, event);
}

/* Takes the events that have come, at most one message of them; waits if there are none. NULL: the thread ends. */
static struct kv_event *take(struct hearth_kv_events *events, int64_t wait_us, bool *cleared, bool *stop) {
    const int64_t until_us = hearth_clock_us() + wait_us;
    (void)pthread_mutex_lock(&events->lock);
    while (!events->first && !events->overflowed && !events->stop &&
           hearth_clock_cond_wait(&events->came, &events->lock, until_us)) {
        continue;
    }
    struct kv_event *taken = events->first, **at = &events->first;
    for (size_t n = 0; *at && n < BATCH_MAX; n++) {
        at = &(*at)->next;
        events->queued--;
    }
    events->first = *at;
    events->end = events->first ? events->end : &events->first;
    *at = NULL;
    *cleared = events->overflowed;
    events->overflowed = false;
    *stop = events->stop && !events->first;
    (void)pthread_mutex_unlock(&events->lock);
    return taken;
}

/* ---- messages ---- */

static void pack_text(msgpack_packer *packer, const char *text) {
    (void)msgpack_pack_str(packer, strlen(text));
    (void)msgpack_pack_str_body(packer, text, strlen(text));
}

static void pack_event(msgpack_packer *packer, const struct kv_event *event, int32_t page_tokens) {
    static const char *const tags[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
    (void)msgpack_pack_array(packer, event->kind == STORED ? 7 : event->kind == REMOVED ? 3 : 1);
    pack_text(packer, tags[event->kind]);
    if (event->kind == CLEARED) {
        return;
    }
    (void)msgpack_pack_array(packer, 1);
    (void)msgpack_pack_uint64(packer, event->block);
    if (event->kind == STORED) {
        (void)(event->first ? msgpack_pack_nil(packer) : msgpack_pack_uint64(packer, event->parent));
        (void)msgpack_pack_array(packer, (size_t)page_tokens);
        for (int32_t i = 0; i < page_tokens; i++) {
            (void)msgpack_pack_int32(packer, event->tokens[i]);
        }
        (void)msgpack_pack_int32(packer, page_tokens);
        (void)msgpack_pack_nil(packer); /* LoRA: a server has one model */
    }
    pack_text(packer, "CPU");
}

static void free_message(struct kv_message *message) {
    msgpack_sbuffer_destroy(&message->bytes);
    free(message);
}

static int write_bytes(void *user, const char *bytes, size_t len) {
    struct kv_message *message = user;
    message->broken = message->broken || msgpack_sbuffer_write(&message->bytes, bytes, len) != 0;
    return 0;
}

/* Packs and frees the events. NULL: out of memory. */
static struct kv_message *pack(struct hearth_kv_events *events, struct kv_event *list, bool cleared) {
    struct kv_message *message = calloc(1, sizeof *message);
    const struct kv_event clear = {.kind = CLEARED};
    msgpack_packer packer;
    size_t n = cleared;
    for (const struct kv_event *event = list; event; event = event->next) {
        n++;
    }
    if (message) {
        msgpack_sbuffer_init(&message->bytes);
        msgpack_packer_init(&packer, message, write_bytes);
        (void)msgpack_pack_array(&packer, 3);
        (void)msgpack_pack_double(&packer, (double)hearth_clock_unix_us() / 1e6);
        (void)msgpack_pack_array(&packer, n);
        if (cleared) {
            pack_event(&packer, &clear, 0);
        }
    }
    while (list) {
        struct kv_event *event = list;
        list = event->next;
        if (message) {
            pack_event(&packer, event, events->params.page_tokens);
        }
        free(event);
    }
    if (message) {
        (void)msgpack_pack_int(&packer, 0); /* the data-parallel rank */
    }
    if (message && message->broken) {
        free_message(message);
        return NULL;
    }
    return message;
}

static void remember(struct hearth_kv_events *events, struct kv_message *message) {
    *events->newest = message;
    events->newest = &message->next;
    events->remembered++;
    events->remembered_bytes += message->bytes.size;
    while (events->remembered > 1 &&
           (events->remembered > REMEMBERED_MAX || events->remembered_bytes > REMEMBERED_BYTES)) {
        struct kv_message *oldest = events->oldest;
        events->oldest = oldest->next;
        events->remembered--;
        events->remembered_bytes -= oldest->bytes.size;
        free_message(oldest);
    }
}

/* A number in big-endian order, as in all messages. */
static void number_bytes(uint64_t number, unsigned char out[8]) {
    for (int i = 0; i < 8; i++) {
        out[i] = (unsigned char)(number >> (56 - 8 * i));
    }
}

static void publish(struct hearth_kv_events *events, struct kv_message *message) {
    unsigned char number[8];
    message->number = events->number++;
    number_bytes(message->number, number);
    (void)zmq_send(events->publish, events->topic, strlen(events->topic), ZMQ_SNDMORE);
    (void)zmq_send(events->publish, number, sizeof number, ZMQ_SNDMORE);
    (void)zmq_send(events->publish, message->bytes.data, message->bytes.size, 0);
    remember(events, message);
    (void)pthread_mutex_lock(&events->lock);
    events->stats.published++;
    (void)pthread_mutex_unlock(&events->lock);
}

/* ---- replay ---- */

static void reply(struct hearth_kv_events *events, zmq_msg_t *peer, uint64_t number, const void *bytes, size_t len) {
    unsigned char head[8];
    zmq_msg_t to;
    number_bytes(number, head);
    (void)zmq_msg_init(&to);
    (void)zmq_msg_copy(&to, peer);
    const int flags = ZMQ_SNDMORE | ZMQ_DONTWAIT; /* a peer that does not read gets no more */
    if (zmq_msg_send(&to, events->replay, flags) < 0) {
        (void)zmq_msg_close(&to);
        return;
    }
    (void)zmq_send(events->replay, "", 0, flags);
    (void)zmq_send(events->replay, head, sizeof head, flags);
    (void)zmq_send(events->replay, bytes, len, ZMQ_DONTWAIT);
}

/* Answers one request: the peer, an empty part, the number to begin with. Anything else is dropped. */
static bool answer_replay(struct hearth_kv_events *events) {
    zmq_msg_t parts[3];
    size_t n = 0;
    bool more = true;
    for (; more; n++) {
        zmq_msg_t *part = &parts[n < 3 ? n : 2];
        if (n >= 3) {
            (void)zmq_msg_close(part);
        }
        (void)zmq_msg_init(part);
        if (zmq_msg_recv(part, events->replay, ZMQ_DONTWAIT) < 0) {
            (void)zmq_msg_close(part);
            break;
        }
        more = zmq_msg_more(part);
    }
    const bool came = n > 0;
    if (n == 3 && zmq_msg_size(&parts[1]) == 0 && zmq_msg_size(&parts[2]) == 8) {
        const unsigned char *bytes = zmq_msg_data(&parts[2]);
        uint64_t from = 0;
        for (int i = 0; i < 8; i++) {
            from = from << 8 | bytes[i];
        }
        for (const struct kv_message *message = events->oldest; message; message = message->next) {
            if (message->number >= from) {
                reply(events, &parts[0], message->number, message->bytes.data, message->bytes.size);
            }
        }
        reply(events, &parts[0], UINT64_MAX, "", 0);
    }
    for (size_t i = 0; i < (n < 3 ? n : 3); i++) {
        (void)zmq_msg_close(&parts[i]);
    }
    return came;
}

/* ---- life ---- */

static void *run(void *user) {
    struct hearth_kv_events *events = user;
    bool stop = false, cleared = true; /* what an earlier process has published is no longer true */
    for (bool first = true; !stop; first = false) {
        bool overflowed;
        struct kv_event *list = take(events, first ? 0 : 50000, &overflowed, &stop);
        cleared = cleared || overflowed;
        if (list || cleared) {
            struct kv_message *message = pack(events, list, cleared);
            cleared = !message; /* out of memory: events were lost */
            if (message) {
                publish(events, message);
            }
        }
        for (int n = 0; n < REPLAY_MAX && events->replay && answer_replay(events); n++) {
        }
    }
    return NULL;
}

const struct hearth_cache_observer *hearth_kv_events_observer(struct hearth_kv_events *events) {
    return &events->observer;
}

void hearth_kv_events_stats(struct hearth_kv_events *events, struct hearth_kv_events_stats *stats) {
    (void)pthread_mutex_lock(&events->lock);
    *stats = events->stats;
    (void)pthread_mutex_unlock(&events->lock);
}

void hearth_kv_events_destroy(struct hearth_kv_events *events) {
    const int linger_ms = LINGER_MS, none = 0;
    if (!events) {
        return;
    }
    if (events->has_thread) {
        (void)pthread_mutex_lock(&events->lock);
        events->stop = true;
        (void)pthread_cond_signal(&events->came);
        (void)pthread_mutex_unlock(&events->lock);
        (void)pthread_join(events->thread, NULL);
    }
    if (events->publish) {
        (void)zmq_setsockopt(events->publish, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        (void)zmq_close(events->publish);
    }
    if (events->replay) {
        (void)zmq_setsockopt(events->replay, ZMQ_LINGER, &none, sizeof none);
        (void)zmq_close(events->replay);
    }
    if (events->context) {
        (void)zmq_ctx_term(events->context);
    }
    empty_queue(events);
    while (events->oldest) {
        struct kv_message *message = events->oldest;
        events->oldest = message->next;
        free_message(message);
    }
    (void)pthread_cond_destroy(&events->came);
    (void)pthread_mutex_destroy(&events->lock);
    free(events->topic);
    free(events);
}

static void *bind_socket(void *context, int type, const char *endpoint, const char *option, struct hearth_errmsg *msg) {
    void *socket = zmq_socket(context, type);
    const int64_t most = REQUEST_BYTES;     /* of what a peer sends: a request is eight bytes, a subscription a topic */
    const int answers = REMEMBERED_MAX + 1; /* the queue to a peer drops what it cannot hold: it holds a replay */
    if (socket && (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most) != 0 ||
                   (type == ZMQ_ROUTER && zmq_setsockopt(socket, ZMQ_SNDHWM, &answers, sizeof answers) != 0) ||
                   zmq_bind(socket, endpoint) != 0)) {
        (void)hearth_fail(msg, HEARTH_ERR_INVALID, "%s %s: %s", option, endpoint, zmq_strerror(zmq_errno()));
        (void)zmq_close(socket);
        socket = NULL;
    }
    return socket;
}

int hearth_kv_events_create(const struct hearth_kv_events_params *params, struct hearth_kv_events **out,
                            struct hearth_errmsg *msg) {
    struct hearth_kv_events *events = calloc(1, sizeof *events);
    if (!events) {
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    events->params = *params;
    events->observer = (struct hearth_cache_observer){.stored = on_stored, .removed = on_removed, .user = events};
    events->end = &events->first;
    events->newest = &events->oldest;
    (void)pthread_mutex_init(&events->lock, NULL);
    hearth_clock_cond_init(&events->came);
    msg->text[0] = '\0';
    events->topic = strdup(params->topic);
    events->context = events->topic ? zmq_ctx_new() : NULL;
    if (events->context) {
        events->publish = bind_socket(events->context, ZMQ_PUB, params->endpoint, "--kv-events", msg);
    }
    if (events->publish && params->replay) {
        events->replay = bind_socket(events->context, ZMQ_ROUTER, params->replay, "--kv-events-replay", msg);
    }
    const bool bound = events->publish && (events->replay || !params->replay);
    events->has_thread = bound && pthread_create(&events->thread, NULL, run, events) == 0;
    if (!events->has_thread) {
        hearth_kv_events_destroy(events);
        return msg->text[0] ? HEARTH_ERR_INVALID : hearth_fail(msg, HEARTH_ERR_NOMEM, "out of memory");
    }
    *out = events;
    return HEARTH_OK;
}
