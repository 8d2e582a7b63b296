/* TLS, by OpenSSL below libevent's buffers.
 *
 * A context holds the certificate and its key. A connection refers to the context that is current when it is
 * accepted, so the context can be replaced at any time. TLS 1.2 is the minimum, and HTTP/1.1 the only protocol: a
 * client that offers only others is refused by ALPN before it sends anything. Messages about files come from
 * OpenSSL. A key with a passphrase is refused; nothing asks for it on a terminal. */
#include "http/conn.h"

#include "base/log.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

static int no_passphrase(char *buf, int size, int rwflag, void *user) {
    bool *asked = user;
    (void)buf, (void)size, (void)rwflag;
    *asked = true;
    return -1;
}

/* The reason why a file was refused, from OpenSSL's queue of errors, which is emptied. The first error has the cause.
 */
static const char *last_error(void) {
    const unsigned long code = ERR_peek_error();
    const char *text = ERR_SYSTEM_ERROR(code) ? strerror(ERR_GET_REASON(code)) : ERR_reason_error_string(code);
    ERR_clear_error();
    return text != NULL ? text : "unknown error";
}

/* Selects HTTP/1.1 from the client's protocols. */
static int select_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                           unsigned int in_len, void *user) {
    static const unsigned char spoken[] = "\x08http/1.1";
    unsigned char *chosen;
    (void)ssl, (void)user;
    if (SSL_select_next_proto(&chosen, out_len, spoken, sizeof spoken - 1, in, in_len) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Warns of a certificate that has expired or is not valid yet: clients refuse it, and tell only their users. */
static void warn_of_times(SSL_CTX *ctx, const char *cert_path) {
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) < 0) {
        hearth_log(HEARTH_LOG_WARN, "http: the certificate in %s has expired: clients refuse it", cert_path);
    } else if (X509_cmp_current_time(X509_get0_notBefore(cert)) > 0) {
        hearth_log(HEARTH_LOG_WARN, "http: the certificate in %s is not valid yet: clients refuse it", cert_path);
    }
}

#define NOT_ITS_KEY "the key in %s is not that of the certificate in %s"

static int create_context(const char *cert_path, const char *key_path, struct ssl_ctx_st **out,
                          struct hearth_errmsg *msg) {
    bool asked = false;
    *out = NULL;
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(ctx);
        return hearth_fail(msg, HEARTH_ERR_NOMEM, "TLS cannot be had: %s", last_error());
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    SSL_CTX_set_default_passwd_cb_userdata(ctx, &asked);
    SSL_CTX_set_alpn_select_cb(ctx, select_protocol, NULL);
    int rc = HEARTH_OK;
    if (SSL_CTX_use_certificate_chain_file(ctx, cert_path) != 1) {
        rc = hearth_fail(msg, HEARTH_ERR_IO, "cannot take the certificate in %s: %s", cert_path, last_error());
    } else if (SSL_CTX_use_PrivateKey_file(ctx, key_path, SSL_FILETYPE_PEM) != 1) {
        const bool other = ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH;
        rc = other ? hearth_fail(msg, HEARTH_ERR_IO, NOT_ITS_KEY, key_path, cert_path)
                   : hearth_fail(msg, HEARTH_ERR_IO, "cannot take the key in %s: %s", key_path,
                                 asked ? "it has a passphrase, which nobody is here to type" : last_error());
    } else if (SSL_CTX_check_private_key(ctx) != 1) {
        rc = hearth_fail(msg, HEARTH_ERR_IO, NOT_ITS_KEY, key_path, cert_path);
    }
    SSL_CTX_set_default_passwd_cb_userdata(ctx, NULL);
    ERR_clear_error();
    if (rc != HEARTH_OK) {
        SSL_CTX_free(ctx);
        return rc;
    }
    warn_of_times(ctx, cert_path);
    ERR_clear_error();
    *out = ctx;
    return HEARTH_OK;
}

void hearth_http_tls_destroy(struct ssl_ctx_st *ctx) {
    SSL_CTX_free(ctx);
}

struct bufferevent *hearth_http_tls_accept(struct hearth_http_server *server, evutil_socket_t fd) {
    pthread_mutex_lock(&server->mutex);
    SSL *ssl = SSL_new(server->tls);
    pthread_mutex_unlock(&server->mutex);
    if (ssl == NULL) {
        ERR_clear_error();
        return NULL;
    }
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(server->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

const char *hearth_http_tls_error(struct bufferevent *bev) {
    const unsigned long code = bufferevent_get_openssl_error(bev);
    ERR_clear_error();
    return code != 0 ? ERR_reason_error_string(code) : NULL;
}

void hearth_http_tls_close_notify(struct bufferevent *bev) {
    SSL *ssl = bufferevent_openssl_get_ssl(bev);
    if (ssl != NULL && SSL_is_init_finished(ssl)) {
        SSL_shutdown(ssl);
        ERR_clear_error();
    }
}

int hearth_http_load_tls(struct hearth_http_server *server, const char *cert_path, const char *key_path,
                         struct hearth_errmsg *msg) {
    SSL_CTX *fresh = NULL;
    const int rc = create_context(cert_path, key_path, &fresh, msg);
    if (rc != HEARTH_OK) {
        return rc;
    }
    pthread_mutex_lock(&server->mutex);
    SSL_CTX *before = server->tls;
    server->tls = fresh;
    pthread_mutex_unlock(&server->mutex);
    SSL_CTX_free(before);
    return HEARTH_OK;
}
