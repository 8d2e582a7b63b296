/* Log lines about clients that are refused, cut off or dropped.
 *
 * A client that causes such a line a thousand times a second must not fill the disk. In each period of REPORT_US
 * only the first REPORT_LINES lines are written; the others are counted, and the period ends with their number. A
 * path is the client's text, so only its printable characters are written. */
#include "base/clock.h"
#include "base/log.h"
#include "http/conn.h"

#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* The first lines of a burst show what it is; at this rate a day of it fills some 20 MB. */
#define REPORT_US (10 * 1000000ll)
#define REPORT_LINES 20u
#define PATH_SHOWN 80u /* a line stays a line */

/* Writes how many lines a window that has ended left out, and begins a new one. */
static void turn_over(struct hearth_http_server *server) {
    struct hearth_http_report *report = &server->report;
    const int64_t now_us = hearth_clock_us();
    if (now_us - report->since_us < REPORT_US) {
        return;
    }
    if (report->left_out > 0) {
        hearth_log(HEARTH_LOG_WARN, "http: %" PRIu64 " more lines like these were left out (see /metrics)",
                   report->left_out);
    }
    *report = (struct hearth_http_report){.since_us = now_us};
}

void hearth_http_report_tick(struct hearth_http_server *server) {
    if (server->report.left_out > 0) {
        turn_over(server);
    }
}

static bool may_log(struct hearth_http_server *server) {
    turn_over(server);
    if (server->report.written >= REPORT_LINES) {
        server->report.left_out++;
        return false;
    }
    server->report.written++;
    return true;
}

bool hearth_http_may_report(const struct hearth_http_exchange *exchange) {
    return may_log(exchange->conn->server);
}

/* The client's address, as far as the system still knows it. */
static void name_peer(const struct hearth_http_conn *conn, char out[HEARTH_HTTP_PEER_BYTES]) {
    struct sockaddr_storage address;
    socklen_t len = sizeof address;
    if (conn->server->unix_path != NULL) {
        snprintf(out, HEARTH_HTTP_PEER_BYTES, "a client of this machine");
    } else if (getpeername(bufferevent_getfd(conn->bev), (struct sockaddr *)&address, &len) != 0 ||
               getnameinfo((const struct sockaddr *)&address, len, out, HEARTH_HTTP_PEER_BYTES, NULL, 0,
                           NI_NUMERICHOST) != 0) {
        snprintf(out, HEARTH_HTTP_PEER_BYTES, "a client");
    }
}

/* " (POST /v1/messages)", or "" when nothing is known of the request. */
static void name_request(const struct hearth_http_conn *conn, char *out, size_t cap) {
    char path[PATH_SHOWN + 1];
    size_t len = 0;
    for (; len < conn->url.len && len < PATH_SHOWN && conn->url.data[len] != '?'; len++) {
        const uint8_t c = conn->url.data[len];
        path[len] = c > 0x20 && c < 0x7f ? (char)c : '.';
    }
    path[len] = '\0';
    out[0] = '\0';
    if (len > 0) {
        snprintf(out, cap, " (%s %s)", llhttp_method_name((llhttp_method_t)conn->parser.method), path);
    }
}

void hearth_http_report_error(struct hearth_http_conn *conn, int status, const char *message, const char *request_id) {
    struct hearth_http_stats *stats = &conn->server->stats;
    char peer[HEARTH_HTTP_PEER_BYTES], request[PATH_SHOWN + 40];
    uint64_t *counter = status == 408   ? &stats->timeouts
                        : status == 503 ? &stats->refused
                        : status == 403 ? &stats->forbidden
                                        : &stats->malformed;
    ++*counter;
    if (may_log(conn->server)) {
        name_peer(conn, peer);
        name_request(conn, request, sizeof request);
        hearth_log(HEARTH_LOG_INFO, "http: %s: %s answered with %d: %s%s", request_id, peer, status, message, request);
    }
}

void hearth_http_report_drop(struct hearth_http_conn *conn, const char *cause) {
    char peer[HEARTH_HTTP_PEER_BYTES], request[PATH_SHOWN + 40];
    const char *id = conn->exchange != NULL ? conn->exchange->request_id : NULL;
    if (may_log(conn->server)) {
        name_peer(conn, peer);
        name_request(conn, request, sizeof request);
        hearth_log(HEARTH_LOG_INFO, "http: %s%s%s cut off: %s%s", id != NULL ? id : "", id != NULL ? ": " : "", peer,
                   cause, request);
    }
}
