/* Ends requests and connections.
 *
 * A connection is destroyed only by the loop (a callback of libevent, posted work). Below a call of the handler it
 * is only marked (`doomed`). If an exchange is open when its connection ends, it is
 * destroyed first, and then its handler learns that the client has gone. A server that stops ends its loop with its
 * last connection. */
#include "base/assert.h"
#include "http/conn.h"

#include <stdlib.h>

void hearth_http_exchange_destroy(struct hearth_http_exchange *exchange) {
    free(exchange->path);
    hearth_buf_finish(&exchange->extra);
    free(exchange);
}

void hearth_http_exchange_drop(struct hearth_http_conn *conn) {
    void (*gone)(void *) = conn->exchange->gone;
    void *gone_user = conn->exchange->gone_user;
    conn->server->stats.dropped += conn->state == HEARTH_HTTP_CONN_BUSY;
    hearth_http_exchange_destroy(conn->exchange);
    conn->exchange = NULL;
    if (gone != NULL) {
        gone(gone_user);
    }
}

void hearth_http_request_reset(struct hearth_http_conn *conn) {
    HEARTH_ASSERT(conn->server->bodies_bytes >= conn->body.len);
    conn->server->bodies_bytes -= conn->body.len;
    hearth_buf_finish(&conn->url);
    hearth_buf_finish(&conn->head);
    hearth_buf_finish(&conn->body);
    free(conn->headers);
    conn->headers = NULL;
    conn->header_count = 0;
    conn->header_room = 0;
    conn->head_bytes = conn->framing_bytes = conn->protocol_len = 0;
    conn->piece_at = conn->word_end = 0;
    conn->in_name = conn->head_done = conn->head_read = conn->complete = conn->resumed = false;
    conn->error_status = 0;
}

void hearth_http_conn_free(struct hearth_http_conn *conn) {
    if (conn->output_watch != NULL) {
        evbuffer_remove_cb_entry(bufferevent_get_output(conn->bev), conn->output_watch);
    }
    if (conn->bev != NULL) {
        bufferevent_free(conn->bev);
    }
    if (conn->timer != NULL) {
        event_free(conn->timer);
    }
    if (conn->turn != NULL) {
        event_free(conn->turn);
    }
    if (conn->address != NULL) {
        hearth_http_address_unref(conn->server, conn->address);
    }
    free(conn);
}

void hearth_http_end_if_done(struct hearth_http_server *server) {
    if (server->stopping && TAILQ_EMPTY(&server->conns)) {
        /* Not loopbreak: libevent closes the sockets of freed connections in the loop's next round. */
        event_base_loopexit(server->base, NULL);
    }
}

void hearth_http_conn_destroy(struct hearth_http_conn *conn) {
    struct hearth_http_server *server = conn->server;
    HEARTH_ASSERT(!conn->pumping);
    if (conn->exchange != NULL) {
        hearth_http_exchange_drop(conn);
    }
    hearth_http_conn_leave(conn);
    TAILQ_REMOVE(&server->conns, conn, in_conns);
    server->stats.connections--;
    if (!conn->doomed) {
        hearth_http_unread_forget(conn);
    }
    if (server->has_tls && (conn->state == HEARTH_HTTP_CONN_FLUSH || conn->state == HEARTH_HTTP_CONN_IDLE)) {
        hearth_http_tls_close_notify(conn->bev);
    }
    hearth_http_request_reset(conn);
    hearth_http_conn_free(conn);
    if (server->listener != NULL) {
        evconnlistener_enable(server->listener); /* there is room again */
    }
    hearth_http_end_if_done(server);
}
