/* A connection to the store: handshake, replies, deadlines, failure, trying again.
 *
 *     DOWN --retry_us--> CONNECTING --AUTH, SELECT, PING answered--> UP
 *       ^-------------------------------- any failure ---------------'
 *
 * A connection fails when the store closes it, when the handshake is refused or takes too long, and when the store is
 * silent for the timeout while it owes an answer, and when a reply is longer than any can be. Everything under way is
 * lost then, and answered; the next attempt comes after 1 s, 2 s, ... 30 s. Until it succeeds the tier takes no
 * operation, so nothing waits for a store that is gone.
 *
 * Invariant: `context` is the connection that commands may be sent on. hiredis calls back for every command that was
 * sent, also when it frees the connection; `context` is NULL by then. */
#include "tier/remote_engine.h"

#include "base/clock.h"
#include "base/health.h"

#include <inttypes.h>
#include <openssl/err.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LENGTH_MAX 16 /* digits and the end of the line, of a string's length */

/* ---- names ---- */

void hearth_remote_key_block(const struct hearth_model_id *model, enum remote_key kind, struct hearth_digest base,
                             char key[REMOTE_KEY_BYTES]) {
    char hex[33];
    hearth_digest_hex(base, hex);
    (void)snprintf(key, REMOTE_KEY_BYTES, "hearth:%s:%c:{%s}", model->hex, (char)kind, hex);
}

void hearth_remote_key_chunk(const struct hearth_model_id *model, struct hearth_digest base, struct hearth_digest name,
                             size_t chunk, char key[REMOTE_KEY_BYTES]) {
    char block[33], hex[33];
    hearth_digest_hex(base, block);
    hearth_digest_hex(name, hex);
    (void)snprintf(key, REMOTE_KEY_BYTES, "hearth:%s:s:{%s}:%s:%zu", model->hex, block, hex, chunk);
}

/* ---- operations ---- */

void hearth_remote_op_leave(struct remote_op *op) {
    struct remote_link *link = op->link;
    link->unsent = link->unsent == op ? TAILQ_NEXT(op, list) : link->unsent;
    TAILQ_REMOVE(&link->ops, op, list);
}

void hearth_remote_op_drop(struct remote_op *op) {
    hearth_buf_finish(&op->header);
    hearth_buf_finish(&op->body);
    hearth_format_open_cancel(op->opening);
    hearth_format_info_finish(&op->info);
    op->opening = NULL;
    op->arrived_bytes = op->opened_bytes = op->header_len = 0;
}

void hearth_remote_op_end(struct remote_op *op) {
    struct remote *remote = op->link->remote;
    hearth_record_destroy(op->record);
    hearth_remote_op_drop(op);
    free(op->names);
    if (op->blob) {
        hearth_blob_unref(op->blob);
    }
    if (op->kind == REMOTE_TOUCH || op->kind == REMOTE_DISCARD) {
        free(op);
    } else {
        hearth_events_post(&remote->events, &op->answer);
    }
}

static void on_reply(redisAsyncContext *context, void *reply, void *user);

bool hearth_remote_send(struct remote_op *op, int argc, const char **argv, const size_t *lens) {
    struct remote_link *link = op->link;
    const struct hearth_remote_cluster *cluster = link->remote->params.cluster;
    if (op->lost || link->state != REMOTE_UP ||
        (cluster && cluster->asks(cluster->user, op->base) &&
         redisAsyncCommand(link->context, NULL, NULL, "ASKING") != REDIS_OK) ||
        redisAsyncCommandArgv(link->context, on_reply, op, argc, argv, lens) != REDIS_OK) {
        op->lost = true;
        return false;
    }
    if (link->owed++ == 0) {
        link->heard_us = hearth_clock_us(); /* until now the store owed nothing */
    }
    op->sent++;
    return true;
}

/* ---- inboxes ---- */

bool hearth_remote_submit(struct remote_link *link, struct remote_op *op, bool only_up) {
    struct remote *remote = link->remote;
    if (!op) {
        return false;
    }
    op->link = link;
    (void)pthread_mutex_lock(&remote->lock);
    const bool takes = !only_up || link->state == REMOTE_UP;
    if (takes) {
        TAILQ_INSERT_TAIL(&link->inbox, op, list);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    if (takes) {
        (void)eventfd_write(link->wake_fd, 1);
    }
    return takes;
}

struct remote_op *hearth_remote_op_make(enum remote_op_kind kind, enum hearth_backing_event_type type,
                                        struct hearth_digest name) {
    struct remote_op *op = calloc(1, sizeof *op);
    if (op) {
        op->kind = kind;
        op->name = name;
        op->answer.event = (struct hearth_backing_event){.type = type, .name = name, .remote = true};
    }
    return op;
}

void hearth_remote_discard(struct remote *remote, struct hearth_digest name, struct hearth_digest base, size_t chunks) {
    struct remote_op *op = hearth_remote_op_make(REMOTE_DISCARD, HEARTH_BACKING_REMOVED, name);
    if (op) {
        op->base = base;
        op->chunks = chunks;
    }
    if (!hearth_remote_submit(&remote->writer, op, true)) {
        free(op); /* out of memory: the next read finds it bad again */
    }
}

/* ---- failure ---- */

/* MOVED 3999 127.0.0.1:6381, or ASK */
static bool read_moved(const char *error, char host[128], struct hearth_remote_moved *out) {
    const char *where = strrchr(error, ' '), *colon = strrchr(error, ':');
    *out = (struct hearth_remote_moved){.host = host, .asks = strncmp(error, "ASK ", 4) == 0};
    if ((!out->asks && strncmp(error, "MOVED ", 6) != 0) || !colon || colon < where || colon - where > 127) {
        return false;
    }
    (void)snprintf(host, 128, "%.*s", (int)(colon - where - 1), where + 1);
    return sscanf(error, "%*s %d", &out->slot) == 1 && sscanf(colon + 1, "%d", &out->port) == 1 && out->slot >= 0 &&
           out->slot < HEARTH_REMOTE_SLOTS && out->port > 0 && out->port < 65536;
}

bool hearth_remote_moved(struct remote_op *op, const char *error) {
    const struct hearth_remote_cluster *cluster = op->link->remote->params.cluster;
    struct hearth_remote_moved moved;
    char host[128];
    const bool known = cluster && read_moved(error, host, &moved);
    if (known) {
        op->moved = true;
        op->asks = op->asks || moved.asks;
        cluster->changed(cluster->user, &moved, op->link->remote->address.host);
    } else if (cluster && (strncmp(error, "TRYAGAIN", 8) == 0 || strncmp(error, "CLUSTERDOWN", 11) == 0)) {
        cluster->changed(cluster->user, NULL, op->link->remote->address.host);
        return true;
    }
    return known;
}

bool hearth_remote_pass(struct remote_op *op) {
    const struct hearth_remote_cluster *cluster = op->link->remote->params.cluster;
    return op->moved && op->hops < HEARTH_REMOTE_HOPS_MAX &&
           cluster->pass(cluster->user, op, op->base, &op->link->remote->backing);
}

/* The cluster reports the condition of a node, without the node's lock: the cluster's lock is taken before it. */
static void tell_cluster(const struct remote *remote) {
    const struct hearth_remote_cluster *cluster = remote->params.cluster;
    if (cluster) {
        cluster->changed(cluster->user, NULL, remote->address.host);
    }
}

/* Prints what the store said and what to do about it; with `alone` only the latter. */
static void explain(const char *said, char out[160]) {
    static const struct {
        const char *begins, *words;
        bool alone;
    } REPLIES[] = {
        {"OOM", "it is full and evicts nothing (raise its maxmemory, or set its maxmemory-policy to allkeys-lru)",
         true},
        {"READONLY", "it is a read-only replica (give the primary's address)", true},
        {"MASTERDOWN", "it is a replica that has lost its primary (give the primary's address)", true},
        {"MOVED ", "it is a node of a cluster (give several of its hosts, with commas between them)", true},
        {"ASK ", "it is a node of a cluster (give several of its hosts, with commas between them)", true},
        {"ERR unknown command", "it does not know what a store does (a Sentinel? give the address of what it watches)",
         true},
        {"NOAUTH", "the password stands in --kv-remote", false},
        {"WRONGPASS", "the password stands in --kv-remote", false},
        {"ERR AUTH", "it has no password: leave it out of --kv-remote", false},
        {"ERR DB index", "the number behind the port in --kv-remote", false},
        {"NOPERM", "docs/cluster.md says what its user needs", false},
        {"Protocol error", "is there a Redis or Valkey at this port?", false},
    };
    (void)snprintf(out, 160, "%s", said);
    for (size_t i = 0; i < sizeof REPLIES / sizeof *REPLIES; i++) {
        if (strncmp(said, REPLIES[i].begins, strlen(REPLIES[i].begins)) == 0) {
            (void)snprintf(out, 160, REPLIES[i].alone ? "%.0s%s" : "%.100s (%s)", said, REPLIES[i].words);
        }
    }
}

/* Explains a handshake that ended without an answer: perhaps only one side speaks TLS. */
static void explain_silence(const struct remote_link *link, const char *said, char out[160]) {
    const bool tls = link->remote->address.tls, refused = strstr(said, "refused") != NULL,
               silent = strncmp(said, "no answer", 9) == 0, cut = strstr(said, "reset") || strstr(said, "closed");
    explain(said, out);
    if (link->state == REMOTE_CONNECTING && !refused && (tls ? silent || cut : cut)) {
        (void)snprintf(out, 160, "%.80s (%s)", said,
                       tls ? "without TLS at this port the address begins with redis://"
                           : "with TLS at this port the address begins with rediss://");
    }
}

/* Ends the connection. */
static void down(struct remote_link *link, const char *said) {
    struct remote *remote = link->remote;
    char trouble[160];
    explain_silence(link, said, trouble);
    const int64_t now_us = hearth_clock_us();
    link->context = NULL;
    link->want_read = link->want_write = link->more = false;
    link->backoff_us = hearth_backing_backoff_us(link->backoff_us);
    link->retry_us = now_us + link->backoff_us;
    (void)pthread_mutex_lock(&remote->lock);
    const bool stopping = link->stop;
    link->state = REMOTE_DOWN;
    link->tried = true;
    remote->stats.failing = true;
    remote->stats.io_errors++;
    (void)snprintf(remote->stats.trouble, sizeof remote->stats.trouble, "%s", trouble);
    (void)pthread_cond_broadcast(&remote->tried_cond);
    if (!remote->params.cluster && !stopping) { /* under the lock: the other thread may have something else to tell */
        hearth_health_raise(HEARTH_HEALTH_KV_REMOTE,
                            "remote: %s: %s; this box computes and keeps its state by itself, the store is tried "
                            "again by itself",
                            remote->address.label, trouble);
    }
    (void)pthread_mutex_unlock(&remote->lock);
    tell_cluster(remote);
}

void hearth_remote_refused(struct remote *remote, enum remote_op_kind kind, const char *error) {
    const bool reads = kind == REMOTE_SEEK || kind == REMOTE_GET;
    char trouble[160];
    explain(error, trouble);
    (void)pthread_mutex_lock(&remote->lock);
    const bool told = !reads && remote->read_failing;
    remote->stats.failing = true;
    if (reads) {
        remote->read_failing |= 1u << kind;
    } else if (!remote->write_failing) {
        remote->write_failing = true;
        remote->write_backoff_us = hearth_backing_backoff_us(0);
        remote->write_retry_us = hearth_clock_us() + remote->write_backoff_us;
    }
    if (!told) {
        memcpy(remote->stats.trouble, trouble, sizeof trouble);
    }
    if (!remote->params.cluster && !told) {
        hearth_health_raise(HEARTH_HEALTH_KV_REMOTE, "remote: %s %s: %s; %s", remote->address.label,
                            reads ? "cannot be read" : "takes no new state", trouble,
                            reads ? "this box computes what it would have had from there" : "what it has is read");
    }
    (void)pthread_mutex_unlock(&remote->lock);
    tell_cluster(remote);
}

/* Whether nothing fails any more: both connections are up and nothing is refused. */
static bool recover_locked(struct remote *remote) {
    const bool well = remote->reader.state == REMOTE_UP && remote->writer.state == REMOTE_UP &&
                      !remote->write_failing && !remote->read_failing;
    if (well) {
        remote->stats.failing = false;
        remote->stats.trouble[0] = '\0';
    }
    if (well && !remote->params.cluster) {
        hearth_health_clear(HEARTH_HEALTH_KV_REMOTE);
    }
    return well;
}

void hearth_remote_works(struct remote *remote, enum remote_op_kind kind) {
    const bool reads = kind == REMOTE_SEEK || kind == REMOTE_GET;
    (void)pthread_mutex_lock(&remote->lock);
    const bool again = reads ? remote->read_failing & 1u << kind : remote->write_failing;
    remote->read_failing &= reads ? ~(1u << kind) : ~0u;
    remote->write_failing = remote->write_failing && reads;
    const bool well = again && recover_locked(remote);
    (void)pthread_mutex_unlock(&remote->lock);
    if (well) {
        tell_cluster(remote);
    }
}

/* hiredis has given a connection up. */
static void gone(struct remote_link *link, const redisAsyncContext *context) {
    const char *tls = link->remote->ssl ? ERR_reason_error_string(ERR_peek_last_error()) : NULL;
    if (link->context == context) {
        down(link, tls ? tls : context->c.errstr[0] ? context->c.errstr : "the store closed the connection");
    }
}

/* Gives the connection up; what is under way fails. `format`: why, for people who read the log. */
__attribute__((format(printf, 2, 3))) static void fail(struct remote_link *link, const char *format, ...) {
    char trouble[160];
    va_list args;
    redisAsyncContext *context = link->context;
    if (!context) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(trouble, sizeof trouble, format, args);
    va_end(args);
    down(link, trouble);
    redisAsyncFree(context);
}

void hearth_remote_link_close(struct remote_link *link) {
    fail(link, "the server ends");
}

/* ---- hiredis calls ---- */

static void add_read(void *user) {
    ((struct remote_link *)user)->want_read = true;
}

static void del_read(void *user) {
    ((struct remote_link *)user)->want_read = false;
}

static void add_write(void *user) {
    ((struct remote_link *)user)->want_write = true;
}

static void del_write(void *user) {
    ((struct remote_link *)user)->want_write = false;
}

static void on_reply(redisAsyncContext *context, void *reply, void *user) {
    struct remote_op *op = user;
    if (!reply) {
        gone(op->link, context);
        op->lost = true;
    }
    op->link->heard_us = hearth_clock_us();
    op->link->reply_bytes = 0;
    op->link->owed--;
    op->answered++;
    op->link->task->replied(op, reply);
}

static void up(struct remote_link *link) {
    struct remote *remote = link->remote;
    link->backoff_us = 0;
    link->attempts--; /* what answered is asked again first */
    (void)pthread_mutex_lock(&remote->lock);
    link->state = REMOTE_UP;
    link->tried = true;
    const bool well = recover_locked(remote);
    (void)pthread_cond_broadcast(&remote->tried_cond);
    (void)pthread_mutex_unlock(&remote->lock);
    if (well) {
        tell_cluster(remote);
    }
}

/* Answers of AUTH and SELECT (user data: the link), and of PING, which is the last. */
static bool handshake_good(struct remote_link *link, redisAsyncContext *context, const redisReply *reply) {
    if (!reply) {
        gone(link, context);
        return false;
    }
    link->heard_us = hearth_clock_us();
    if (link->context == context && reply->type == REDIS_REPLY_ERROR) {
        fail(link, "%s", reply->str);
    }
    return link->context == context;
}

static void on_handshake(redisAsyncContext *context, void *reply, void *user) {
    (void)handshake_good(user, context, reply);
}

static void on_ping(redisAsyncContext *context, void *reply, void *user) {
    if (handshake_good(user, context, reply)) {
        up(user);
    }
}

static void on_connect(redisAsyncContext *context, int status) {
    struct remote_link *link = context->data;
    const struct hearth_remote_address *address = &link->remote->address;
    if (status != REDIS_OK) {
        gone(link, context);
        return;
    }
    const char *auth[] = {"AUTH", address->user ? address->user : address->password, address->password};
    char db[16];
    (void)snprintf(db, sizeof db, "%d", address->db);
    if (address->password) {
        (void)redisAsyncCommandArgv(context, on_handshake, link, address->user ? 3 : 2, auth, NULL);
    }
    if (address->db != 0) {
        (void)redisAsyncCommand(context, on_handshake, link, "SELECT %s", db);
    }
    (void)redisAsyncCommand(context, on_ping, link, "PING");
}

static void on_disconnect(const redisAsyncContext *context, int status) {
    (void)status;
    gone(context->data, context);
}

/* ---- long values go from the socket to where they belong, without a copy ----
 *
 * hiredis hands a string over when all of it is in its own buffer, and copies it. Where it has read the length of a
 * string that the next operation wants to have in memory of its own, the rest is read right into that memory, over as
 * many calls as it takes, and hiredis is told that the string is empty:
 *
 *     from the store     $1048576\r\n first bytes | the other bytes \r\n
 *     hiredis reads      $1048576\r\n first bytes                        which are skipped, and then 0\r\n\r\n
 *
 * Invariant: while `left` is not 0, hiredis waits for the rest of one string, and every byte of the socket is of it. */

/* The length of the string for which hiredis waits, if it has read that far; -1: it has not, or waits for something
 * else. `skip`: bytes of the line with the length. */
static long long awaited(const redisReader *reader, size_t *skip) {
    const size_t there = reader->len - reader->pos;
    const char *text = reader->buf + reader->pos;
    const char *end = there > 0 ? memchr(text, '\n', there < LENGTH_MAX ? there : LENGTH_MAX) : NULL;
    long long bytes = 0;
    if (reader->ridx != 0 || reader->task[0]->type != REDIS_REPLY_STRING || !end || end - text < 2) {
        return -1;
    }
    for (; text < end - 1; text++) {
        if (*text < '0' || *text > '9') {
            return -1;
        }
        bytes = bytes * 10 + (*text - '0');
    }
    *skip = (size_t)(end + 1 - (reader->buf + reader->pos));
    return bytes;
}

/* Whether the next bytes are read by this file. */
static bool begin_direct(struct remote_link *link) {
    redisReader *reader = link->context->c.reader;
    const redisCallback *next = link->context->replies.head;
    struct remote_direct *direct = &link->direct;
    size_t skip;
    const long long bytes = awaited(reader, &skip);
    struct hearth_buf *to = bytes > 0 && next && next->fn == on_reply && link->task->into
                                ? link->task->into(next->privdata, (size_t)bytes)
                                : NULL;
    const size_t there = to ? reader->len - reader->pos - skip : 0;
    if (!to || there >= (size_t)bytes + 2) {
        return false;
    }
    *direct = (struct remote_direct){.to = to, .bytes = (size_t)bytes, .left = (size_t)bytes + 2 - there};
    memcpy(to->data + to->len, reader->buf + reader->pos + skip, there);
    reader->pos = reader->len;
    return true;
}

static ssize_t raw_read(struct remote_link *link, redisContext *context, char *bytes, size_t size) {
    const ssize_t n = link->read(context, bytes, size);
    link->more = n > 0 && link->remote->ssl;
    return n;
}

/* As redisContextFuncs.read: what hiredis reads with. */
static ssize_t direct_read(redisContext *context, char *bytes, size_t size) {
    static const char EMPTY[] = "0\r\n\r\n";
    struct remote_link *link = ((redisAsyncContext *)context)->data; /* whose first member the context is */
    struct remote_direct *direct = &link->direct;
    if (direct->left == 0 && (link->context == NULL || !begin_direct(link))) {
        const ssize_t n = raw_read(link, context, bytes, size);
        link->reply_bytes += n > 0 ? (size_t)n : 0;
        return n;
    }
    struct hearth_buf *to = direct->to;
    const ssize_t n =
        raw_read(link, context, (char *)to->data + to->len + direct->bytes + 2 - direct->left, direct->left);
    if (n <= 0) {
        return n;
    }
    direct->left -= (size_t)n;
    if (direct->left > 0) {
        return 0;
    }
    to->len += direct->bytes;
    memcpy(bytes, EMPTY, sizeof EMPTY - 1);
    return sizeof EMPTY - 1;
}

/* ---- connecting ---- */

static void connect_link(struct remote_link *link) {
    struct remote *remote = link->remote;
    redisOptions options = {.options = REDIS_OPT_SET_SOCK_CLOEXEC | REDIS_OPT_PREFER_IP_UNSPEC};
    char numeric[HEARTH_REMOTE_WHERE_BYTES];
    const bool known =
        !remote->address.path && hearth_remote_numeric(remote->address.host, link->attempts++, numeric) > 0;
    if (remote->address.path) {
        REDIS_OPTIONS_SET_UNIX(&options, remote->address.path);
    } else {
        REDIS_OPTIONS_SET_TCP(&options, known ? numeric : remote->address.host, remote->address.port);
    }
    ERR_clear_error();
    redisAsyncContext *context = redisAsyncConnectWithOptions(&options);
    link->context = context;
    link->heard_us = hearth_clock_us();
    link->deadline_us = link->heard_us + remote->params.timeout_us;
    if (!context) {
        down(link, "out of memory");
        return;
    }
    context->data = link;
    if (context->err || (remote->ssl && redisInitiateSSLWithContext(&context->c, remote->ssl) != REDIS_OK)) {
        fail(link, "%s", context->c.errstr[0] ? context->c.errstr : "TLS failed");
        return;
    }
    link->funcs = *context->c.funcs;
    link->read = link->funcs.read;
    link->funcs.read = direct_read;
    link->reply_bytes = 0;
    link->direct = (struct remote_direct){0};
    link->more = false;
    context->c.funcs = &link->funcs;
    context->c.reader->maxelements = REMOTE_REPLY_ELEMENTS;
    context->c.reader->maxbuf = 0; /* its buffer is kept between replies */
    context->ev.data = link;
    context->ev.addRead = add_read;
    context->ev.delRead = del_read;
    context->ev.addWrite = add_write;
    context->ev.delWrite = del_write;
    (void)pthread_mutex_lock(&remote->lock);
    link->state = REMOTE_CONNECTING;
    (void)pthread_mutex_unlock(&remote->lock);
    (void)redisAsyncSetConnectCallbackNC(context, on_connect);
    (void)redisAsyncSetDisconnectCallback(context, on_disconnect);
}

/* ---- a turn ---- */

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The next time at which something has to be done even if the store is silent. */
static int64_t next_deadline(const struct remote_link *link) {
    if (!link->context) {
        return link->retry_us;
    }
    int64_t at_us = link->state == REMOTE_UP ? INT64_MAX : link->deadline_us;
    return link->owed > 0 ? earlier(at_us, link->heard_us + link->remote->params.timeout_us) : at_us;
}

void hearth_remote_link_turn(struct remote_link *link, int64_t until_us) {
    int64_t now_us = hearth_clock_us();
    if (!link->context && now_us >= link->retry_us) {
        connect_link(link);
    }
    const int64_t at_us = earlier(until_us, next_deadline(link));
    struct pollfd fds[2] = {{.fd = link->wake_fd, .events = POLLIN}, {.fd = -1}};
    if (link->context) {
        fds[1].fd = link->context->c.fd;
        fds[1].events = (short)((link->want_read ? POLLIN : 0) | (link->want_write ? POLLOUT : 0));
    }
    const int64_t wait_ms = at_us > now_us && !link->more ? (at_us - now_us + 999) / 1000 : 0;
    if (poll(fds, 2, wait_ms > 60000 ? 60000 : (int)wait_ms) < 0) {
        fds[0].revents = fds[1].revents = 0;
    }
    if (fds[0].revents) {
        uint64_t count;
        (void)!read(link->wake_fd, &count, sizeof count);
    }
    if (link->context && (link->more || fds[1].revents & (POLLIN | POLLERR | POLLHUP))) {
        link->heard_us = link->more ? link->heard_us : hearth_clock_us();
        redisAsyncHandleRead(link->context);
    }
    if (link->context && link->reply_bytes > REMOTE_REPLY_BYTES) {
        fail(link, "it sends a reply that is longer than any can be");
    }
    if (link->context && fds[1].revents & POLLOUT) {
        redisAsyncHandleWrite(link->context);
    }
    now_us = hearth_clock_us();
    if (link->context && next_deadline(link) <= now_us) {
        fail(link, "no answer within %" PRId64 " ms", link->remote->params.timeout_us / 1000);
    }
}
